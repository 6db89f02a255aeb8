"""The plan for the steps after nodes were lost or came, with as little moved as can be.

- `surviving_plan`: what is left of a plan; `reconfigure`: the ways on from there (Oobleck, section 5).
- `pipeline_sizes`: new sizes, in numbers of nodes alone; `straggler_plans`, `rebalance_layers`: for slow nodes.

A new way on is a function of `reconfigure` that makes a plan of a `Change`.
"""
