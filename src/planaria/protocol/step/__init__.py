"""The step in progress, its commit, and the checkpoints of what was committed.

- `ballot`: votes; `commit`: clip and grids; `schedule`: learning rates; `halt_reports`: a loss inside a step.
- `cadence`: when a checkpoint is due; `checkpoint`: the one under way, who writes what, when it is given up.
- `telling_order`: who is told the plan that finishes a step at once, and who when there is time.
- `recovery`: what one recovery lost, moved and took; `time_accounting`: a run's time, useful, redone, waiting.
- `evaluation`: when one is due, and which was the best.
- `agreement`: whose replica, sum or computation is wrong where two differ.
- `retained_replicas`: state that no plan accounts for, of idle workers or left by a new plan.
- `damage`: messages that arrived other than they were sent.

It imports `messages` alone. Something else that a commit decides is a pure function of `commit`.
"""
