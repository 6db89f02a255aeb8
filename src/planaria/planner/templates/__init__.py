"""Templates: for each number of nodes, the split of the layers into stages that is best.

- `templates`: the templates of a job; `splits`, `split_*`: the space of splits, and the search for the best.
- `oobleck`: the paper's own objective, for comparison.

A new objective is a module beside `oobleck`, with a line in `templates`.
"""
