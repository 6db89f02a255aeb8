"""The command `planaria`: reads arguments, calls `planaria.api`, turns results and errors into text and exit codes.

- `main`: `train`, `export`, and how commands are found (a name that does not exist too); `options`: what several have.
- `live_commands`: `status`, `top`, `add`, `drain`, `policy`, `save`, `stop`; `live`, `top`: what each asks and shows.
- `folder_commands`: `ls` and `logs`, which read run folders alone; `dashboard_commands`: `dashboard` and `report`.
- `planning/`: `plan` and `profile`; `rehearsal/`: `drill` and `compare`; `simulation/`: `simulate` and `trace`.
- `host_commands`: `agent`, with a node's label and zone, and `certificates`; `start_commands`: `init` and `doctor`.
- `launch_commands`, `pod_commands`: `launch` on an engine that runs a cluster, or in pods.

A new command is a function with a line in `main`.
"""
