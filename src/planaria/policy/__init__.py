"""Policies: which plan is the next one after a change. Each proposes candidates and executes none.

- `interface`: what a policy is asked and what it answers; `planner`: what all of them plan with.
- `templates`, `reroute`, `redundancy`, `morph`, `drop`, `adaptive`: one module for each policy.
- `finishing`: how the rest of a struck step is done; `forecast`: what failures are expected.
- `sentences`: what is told to people.
- `registry`: all policies by name. Another one is a module here, and a line there.

Imports plan and estimate. No policy imports the protocol or anything that does I/O.
"""
