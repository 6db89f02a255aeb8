"""How long a step of a plan takes, what memory it needs, and how long changes take. One step evaluator.

- `step_time`: the answer for a plan, under `conditions`; `durations`: of each instruction by itself.
- `memory`: what a device must hold; `gradient_sums`: what sums cost.
- `transfer_time`, `restore_time`, `step_remainder`: what comes before, after and in the middle.
- `closed_forms`: the papers' own formulas, for comparison.

It imports `plan` alone. A new cost is a term of `durations` or `conditions`, and so reaches every decision.
"""
