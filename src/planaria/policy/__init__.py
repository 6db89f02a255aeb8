"""Policies: which plan is the next one after a change. Each proposes candidates and executes none.

- `interface`: what a policy is asked and what it answers; `planner`: what all of them plan with.
- `templates`, `reroute` (with `detour_search`), `redundancy`, `morph`, `drop`, `adaptive/`: the policies.
- `finishing`: how the rest of a struck step is done; `forecast`: what failures are expected, and until when.
- `candidate_record`: what was weighed, as records have it; `sentences`: decisions in words for people.
- `registry`: the policy of a name, with stages on several devices of a node where that is wanted. Another policy is a
  module here, and a line in `planaria.job.registry`.

Imports plan, planner and estimate. No policy imports the protocol or anything that does I/O.
"""
