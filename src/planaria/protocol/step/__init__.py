"""The step in progress, its commit, and the checkpoints of what was committed.

- `ballot`, `commit`: votes, and what a commit decides; `halt_reports`: what halted workers say after a loss.
- `recovery`: what one recovery lost, moved and took; `time_accounting`: where a run's time went.
- `checkpoint`, `cadence`: what is written by whom, and when; `retained_replicas`, `damage`: what is known of state.

It imports `messages` alone. Something else that a commit decides is a pure function of `commit`.
"""
