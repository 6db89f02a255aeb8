"""Who is in the job: workers that live, nodes that are gone, and what is known of how they went.

- `members`, `admission`: who is connected, fenced, let in; `challenge`: workers that come back are asked.
- `failure_detector`, `liveness`: who is lost though nobody saw it end.

Pure: time comes as an argument. A new sign of a loss is a rule of `failure_detector`.
"""
