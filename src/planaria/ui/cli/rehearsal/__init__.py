"""`planaria drill` and `planaria compare`: a job under a script of failures.

- `drill_commands`: arguments; `run`: from arguments to a script and runs; `view`: figures, tables and pictures of them.
"""
