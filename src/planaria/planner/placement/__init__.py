"""Which node takes which part of which pipeline, and who sends it what it lacks.

- `placement`: nodes to roles, stages to devices; `zones`: roles to what fails as one.
- `transfers`, `senders`: who sends which state, and how soon.
- `matching`: fewest costs between classes of equal things.

A new constraint on who sits where is one of `placement`'s costs, or a rule of `zones`.
"""
