"""The plan for the steps after nodes were lost or came, with as little moved as can be.

- `reconfigure`: the ways on (Oobleck, section 5): simple, borrow, merge, or all nodes dealt out anew, the best of them.
- `pipeline_sizes`: what each way makes of the sizes of pipelines, in numbers of nodes alone.
- `surviving_plan`: what is left of a plan, and the plans that can be made of it.
- `straggler_plans`: ways to give slow nodes less; `rebalance_layers`: a pipeline's layers over its own stages.

A new way on is a function of `reconfigure` that makes a plan of a `Change`.
"""
