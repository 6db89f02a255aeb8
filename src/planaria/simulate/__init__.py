"""Hours of training in virtual time, which jumps from one thing that happens to the next.

- `scenario`: the file that is asked, `failures_part` its section on how nodes go; `sweep`: many of them;
  `experiment`: a job on a cluster, any policy, any trace.
- `simulation`, `run_model`: runs of one policy; `trace_run`: one run over one trace; `trace_events`: what it meets.
- `episode/`: the coordinator's real transitions, from a disturbance until the job trains on.
- `trained`, `results`: what came of it, where time went, what it cost; `baselines`: what runs are held against.
- `timings`: what is not modelled, and what a real run says of it; `traces/`: traces, scripts, generators, tallies.

A run's state is changed by the coordinator's `handle` alone. No real clock, no I/O; chance comes from a seed.
"""
