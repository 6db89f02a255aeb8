"""The plan: placement, routes, owners and transfers of one generation, and what follows from it alone.

- `plan`, `pipeline`: the object; `validate`: what every plan must satisfy.
- `settings`: what a job asks of its plans; `ledger`, `sync_rounds`: whose gradients, summed in which order.
- `program/`: from a plan to each worker's instructions.
- `costs/`: what layers, stages and pipelines cost.
- `compiled`: loops that numba compiles; `quantities`: sizes in words; `thresholds`: what is clearly better.

It imports `job` alone and knows no planner: how plans are found is for `planaria.planner`. Called, the package
is the public function `planaria.plan(job)`.
"""
