"""The message-level simulator behind the random schedules: whole jobs in virtual time, and every promise checked.

- `schedules`: what befalls which job, drawn from a seed; the search for schedules that fail.
- `cluster`: clock, network, disk and nodes, and the injector that strikes them.
- `server`: the simulated server around the real coordinator's machine, and its wire.
- `worker`: simulated workers around the real workers' machine, with symbols for tensors.
- `promises`: what must hold after every event.
- `mutants`: the protocol with one small change, made by machine; `make mutants` tells which nothing notices.
- `dst`: the command, `make dst`.

The shipped package never imports it. But for the commands it does no I/O, knows no torch and reads no clock.
"""
