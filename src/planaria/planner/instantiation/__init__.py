"""How many pipelines of which template make the shortest step, and who computes how much in it.

- `instantiate`: the best set of templates, and a job's first plan; `knapsack`: sizes that fill a number of nodes.
- `enumeration`: all sets of templates, for jobs whose plans are to be Oobleck's.
- `microbatch_shares`: a step's microbatches to pipelines; refuses batches that they cannot share, with the remedy.
- `grids`: equal pipelines with equal stages; `speed_groups`: nodes of different speed.

It takes templates from `planner.templates` and places nothing: that is `planner.placement`.
"""
