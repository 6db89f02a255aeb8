"""The plan: placement, routes, owners and transfers of one generation, and what follows from it alone.

- `plan`, `pipeline`, `groups`: the object; `validate`: what every plan must satisfy; `errors`: why there is none.
- `schedule_kind`: 1f1b, gpipe, zb-h1, ...: how many microbatches each keeps in flight, and whether backwards are split.
- `settings`: what a job asks of its plans; `ledger`: whose gradients an accumulator has; `sums/`: who sums what when.
- `program/`: from a plan to each worker's instructions; `costs/`: what layers, stages and pipelines cost.
- `compiled`: loops that numba compiles; `quantities`: sizes in words; `thresholds`: when searches end.

It imports nothing of Planaria, and knows no planner. Called, the package is the function `planaria.plan(job)`.
"""
