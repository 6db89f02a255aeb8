"""Measured profiles: seconds and bytes of a job's layers, links and steps on this machine.

- `measure`: all of a profile; `dependencies`: what of a job it depends on, without torch.
- `layers`: each layer's forward and backward; `allocations`: memory at its peak.
- `machine`: what a step costs beside its layers (messages, votes, sums, the optimizer).
- `contention`: what devices of one host that are at work at once cost each other; `exchanges`: how long those that
  share a microbatch are at exchanging parts; `at_once`: the same work in several processes, for both.
- `clock`: how compute is timed; `memory`: what the system counts of it.

`ERROR_SUFFIX`: what a measuring process appends to its output's name to report a mistake.
"""

ERROR_SUFFIX = ".error"
