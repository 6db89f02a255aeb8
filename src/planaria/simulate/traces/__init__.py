"""Which nodes were there when: traces, scripts of failures, and what a run made of them.

- `trace`: the data; `formats`: readers and writers of files; `repairs`: what was wrong in them.
- `generators`: traces that are made up; `lone_devices`: losses of devices in them.
- `scripts`: the built-in ones, and how any is played; `script_format`: their files.
- `tally`: samples over time, recoveries, lost work.

A new trace format is a reader in `formats`; a new process of failures, a class in `generators`.
"""
