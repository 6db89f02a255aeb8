"""How long a step of a plan takes, what memory it needs, and how long changes take. One step evaluator.

- `step_time`: the answer for a plan; `simulation`: its events in virtual time; `outline`: quickly, once for each kind
  of pipeline; `lower_bound`: what no order of the plan can beat; `cores`: where workers share a machine's cores.
- `conditions`: what is assumed of machines; `durations`: each instruction by itself; `gradient_sums`: what sums cost.
- `memory`, `memory_walk`: what a device must hold. `transfer_time`, `restore_time`: moves of state, and going back to a
  checkpoint; `step_remainder`: the rest of a struck step; `evaluation_time`: evaluations.

It imports `plan` alone. A new cost is a term of `durations` or `conditions`, and so reaches every decision.
"""
