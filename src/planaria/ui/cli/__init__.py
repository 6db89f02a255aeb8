"""The command `planaria`: reads arguments, calls `planaria.api`, turns results and errors into text and exit codes.

- `main`, `options`: all commands; `live_commands`: what is asked of a running job; `live`: how, without torch.
- `planning/`: `plan` and `profile`; `rehearsal/`: `drill` and `compare`.
- `simulate`, `simulation_view`, `trace`: the commands of those names; `host_commands`: `planaria agent`.

A new command is a function with a line in `main`.
"""
