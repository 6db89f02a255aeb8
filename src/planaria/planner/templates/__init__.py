"""Templates: for each number of nodes, the split of the layers into stages that is best.

- `templates`: a job's templates, smallest and largest; `splits`: the space of splits, as arrays.
- `split_search`: the best split by simulated step; `split_scores`: the steps that it knows, and what searches share;
  `split_bound`: what no split beats; `split_dp`: bounds by shortest paths; `split_looks`: whether any is faster than a
  target.
- `oobleck`: the paper's own objective, for comparison.

A new objective is a module beside `oobleck`, with a line in `templates`.
"""
