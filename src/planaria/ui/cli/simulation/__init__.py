"""`planaria simulate` and `planaria trace`: scenarios, and traces of nodes that come and go.

- `simulate`, `trace`: the commands, which read arguments; `view`: tables of what was simulated.
"""
