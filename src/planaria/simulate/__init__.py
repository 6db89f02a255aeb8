"""Hours of training in virtual time, which jumps from one thing that happens to the next.

- `scenario`, `sweep`, `experiment`: what is asked; `simulation`, `trace_run`, `run_model`: a run over a trace.
- `episode/`: the coordinator's real transitions, from a disturbance until the job trains on.
- `results`, `trained`: what came of it; `baselines`: what runs are held against.
- `timings`: what is not modelled; `traces/`: traces, scripts, generators, tallies.

A run's state is changed by the coordinator's `handle` alone. No real clock, no I/O; chance comes from a seed.
"""
