"""Forgeries: changes of a true history after which something does not hold any more, each with the rule that says so.

A forgery is made at a place drawn at random of those where it is one; a history without such a place gives none.

- `forgery`: what one is. `places`: where, and how entries are changed.
- `decisions`: of journal, votes, sums and what workers did. `telling`: of what users were told, and checkpoints.
"""
