"""Measured profiles: seconds and bytes of a job's layers, links and steps on this machine.

- `measure`: all of a profile; `layers`, `allocations`: a model's layers.
- `machine`, `clock`, `memory what a step costs beside them`.

`ERROR_SUFFIX`: what a measuring process appends to its output's name to report a mistake.
"""

ERROR_SUFFIX = ".error"
