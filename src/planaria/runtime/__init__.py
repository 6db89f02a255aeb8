"""Everything that does I/O: processes, sockets, files, devices. What is decided is decided in `planaria.protocol`.

- `engines/`: what starts agents on a cluster; `launch/`: a training run from job to result.
- `nodes/`: processes and agents that are a job's nodes.
- `coordinator/`: the server around the machine; `measure/`: profiles, measured with the worker's own compute.
- `worker/`: a worker process; `wire/`: frames, sockets and connections.
- `run_folder/`: what lies where in runs/NAME, and records as text; `progress/`: a run on a terminal;
  `observers/`: a run in TensorBoard and elsewhere.
- `component_settings`: from the job's sections to the settings of planner, coordinator and workers.
- `journal/`: what the coordinator decided, durable, and the right to decide; `machine/`: this machine's limits and
  signals.
- `thresholds`: timeouts, sizes of messages, numbers of processes, and what they were measured on.

Imports run from engines down to wire.
"""
