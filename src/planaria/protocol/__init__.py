"""The protocol of a run, without I/O: events in, commands out. `handle(event, now)` alone changes a run's state.

- `coordinator`, `transitions`, `phases`: the machine, and the table of what takes an event in a phase.
- `reception`: what comes on the coordinator's connections: who is taken for whom.
- `handlers/`: what is done about each event; `run/`: the run as its coordinator knows it; `given_run`: a simulation's.
- `membership/`: who is in the job; `planning/`: which plan is next, and what is known for that.
- `step/`: the step in progress, and checkpoints; `messages/`: what is said, recorded and written down.
- `worker/`: the worker's half, for real and simulated workers; `thresholds`: what a run believes, and when it acts.

It imports `policy` and what is below it. A new event is a struct in `messages.events`, with a line in `transitions`.
"""
