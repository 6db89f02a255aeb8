"""The course of a run at its coordinator: what is done about each event, and what follows from it.

`Run` is the state. Every other module has one stretch of the course: functions that take the run and say what is to be
done, as commands; those of an event are named in `planaria.protocol.transitions`. A module calls only modules above it
in this list:

- `end`: the run is over, and what is told then.
- `take`: a plan is put in force, and nodes are released that it does without.
- `checkpoint`: who writes what, and what is given up.
- `loss`: a node is fenced.
- `restore`: back to a checkpoint when some group has no replica; waiting for nodes when there are too few.
- `boundary`: what follows a committed step: the next one, another plan, a checkpoint, the end.
- `salvage`: a loss inside a step.
- `step`: votes and the commit.
- `arrival`: nodes that join, or give notice.
- `switch`: another policy, at the user's wish.
- `departure`: nodes that are lost, by phase.
- `ahead`: decisions in advance, while a step is in progress.
- `saved`: answers to orders to save.
- `restart`: after a coordinator that died.
"""
