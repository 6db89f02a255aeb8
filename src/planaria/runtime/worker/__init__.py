"""A worker process: orders in, through the protocol's machine, to the interpreter.

- `process`, `settings`: its parts put together; `loop`: orders to its main thread; `interpreter`: runs a program.
- `session`: its connection to the coordinator; `heartbeat`: what it tells of itself; `writer`: parts of checkpoints.
- `compute/`: forwards, backwards, replicas; `transport/`: messages and state between workers.
- `emulated/`: devices that only take time; `preemption`: a cloud's notices; `faults`: `--fail`.
- `fatal_errors`: what ends a worker, lack of memory among it; `instruction_trace`: who did what when.

It may not import policy, estimate or simulate: the plan says what to do. A new instruction is a case of `interpreter`.
"""
