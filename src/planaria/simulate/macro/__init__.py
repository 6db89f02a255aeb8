"""Hours of training in virtual time that jumps from one thing that happens to the next.

The coordinator's real transitions, policies, planner and estimator decide; workers are not simulated one by one (that
is `tests/testkit`): what they would answer follows from the plan, and when, from the estimate. What was
found out about a situation once is remembered.

- `timings`: what is not modelled, with its defaults.
- `state`: a situation in which a job trains undisturbed, up to the nodes' names.
- `subject`: what episodes are told and tell.
- `initial_run`: the coordinator's state in which an episode begins.
- `counted`: what workers have counted within a step.
- `spending`: what an episode's seconds were spent on.
- `episode`: from a disturbance until the job trains undisturbed again.
- `moments`: episodes that are known, moment by moment.
- `account`: where the time went, and what came of it.
- `course`: what a trace has in store.
- `trained`: what a run has trained, and how much of it is saved.
- `following`: one run over one trace.
- `engine`: runs of one policy, and what they share.
- `references`: what runs are held against.
- `scenario`: the file that a user writes.
- `sweep`: several of them.
"""
