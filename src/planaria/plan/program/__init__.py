"""From a plan to a worker's program, a module a stage, in this order; none imports a later one.

1. `routes`: which routes are a pipeline of their own, and which cross. 2. `hops`: what a worker does of a route.
3. `units`: one phase of a hop for one microbatch. 4. `orders`, and for crossing routes `list_schedule`: their order.
5. `redundant_compute`: what shadows run, put in between. 6. `layer_cuts`: which backwards go layer by layer.
7. `instructions`: what units are to a worker. 8. `tail`: sums, vote and apply. 9. `programs`: all of this, one by one.
`audits`: which computations are run again in a step, and by whom.
`evaluation`: programs of forwards alone, which tell the losses.
Imports `planaria.plan` alone. A schedule kind is a line in `planaria.plan.schedule_kind`, if need be an order in
`orders`; an instruction is an `Op`, given by `instructions`, and what it does in `planaria.runtime.worker`.
"""
