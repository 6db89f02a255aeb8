"""The command `planaria`: reads arguments, calls `planaria.api`, turns results and errors into text and exit codes.

- `main`: `train`, `export`, and how commands are found (a name that does not exist too); `options`: what several have.
- `live_commands`: `status`, `add`, `drain`, `policy`, `save`, `stop`; `live`: what each asks and shows, without torch.
- `folder_commands`: `ls` and `logs`, which read run folders alone.
- `planning/`: `plan` and `profile`; `rehearsal/`: `drill` and `compare`; `host_commands`: `agent`.
- `simulate`, `trace`: the commands of those names; `simulation_view`: tables of `simulate`.

A new command is a function with a line in `main`.
"""
