"""Accounts of a run that the page and the report show, folded from its records in bounded memory.

- `decisions`: what each decision weighed, what came of it, and what the others would have given.
- `costs`: what the run cost, by zone, and what a dollar bought.
- `evaluations`: held-out figures, the best of them, and the best one that is saved.
"""
