"""Which node takes which part of which pipeline, and who sends it what it lacks.

- `placement`: nodes to roles, stages to devices, so that little moves.
- `zones`: roles to racks or zones, so that an outage of one takes few replicas of a layer.
- `arrangements`: which nodes of a zone go together, in a pipeline or at the same layers.
- `transfers`: who sends which state to whom; `senders`: how soon all can be sent; `warm_up`: beside which steps.
- `matching`: fewest costs between classes of equal things.

A new constraint on who sits where is one of `placement`'s costs, or a rule of `zones`.
"""
