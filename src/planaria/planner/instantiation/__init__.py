"""How many pipelines of which template make the shortest step, and who computes how much in it.

- `instantiate`: a job's first plan, and the best of all sets; `knapsack`: sizes that fill a number of nodes.
- `microbatch_shares`: a step's microbatches to pipelines; `grids`: equal pipelines with equal stages.
- `speed_groups`: nodes of different speed.

It takes templates from `planner.templates` and places nothing: that is `planner.placement`.
"""
