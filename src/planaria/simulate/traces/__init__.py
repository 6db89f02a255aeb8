"""Which nodes were there when: traces, scripts of failures, and what a run made of them.

- `trace`: the data; `formats`, `repairs`: texts that hold traces.
- `generators`: traces that are made up; `scripts`, `script_format`: drills.
- `tally`: samples over time, recoveries, lost work.

A new trace format is a reader in `formats`; a new process of failures, a class in `generators`.
"""
