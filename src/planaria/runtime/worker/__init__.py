"""A worker process: orders in, through the protocol's machine, to the interpreter.

- `process`, `settings`: its parts put together; `loop`, `interpreter`: what its main thread does.
- `session`, `heartbeat`: its way to the coordinator; `writer`: parts of checkpoints.
- `compute/`: forwards, backwards, replicas; `transport/`: messages and state between workers.
- `emulated/`: devices that only take time; `preemption`, `faults`, `instruction_trace`.

It may not import policy, estimate or simulate: the plan says what to do. A new instruction is a case of `interpreter`.
"""
