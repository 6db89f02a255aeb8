"""Who is in the job: workers that live, nodes that are gone, and what is known of how they went.

- `members`: workers that live, nodes that are gone and why; `admission`: connected, fenced, let in, numbered.
- `liveness`: from heartbeats and what an instruction may take, which workers live but do nothing (hung, stuck).
- `failure_detector`: which node is lost that is silent, hung, never came, or was accused by a peer it cannot reach.
- `challenge`: workers that come back to a new coordinator are asked; `link_probes`: which hosts measure their links.

Pure: time comes as an argument. A new sign of a loss is a rule of `failure_detector`.
"""
