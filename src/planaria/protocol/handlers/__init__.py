"""What is done about each event, and what follows from it.

- `joins`, `step`, `losses`: nodes that come, votes, nodes that go; `salvage`: a loss inside a step.
- `boundary`, `adopt_plan`: between steps; a plan in force; `checkpoints`, `saved`, `restore`: state on disk.
- `restart`: after a coordinator that died; `precompute`, `policy`, `fencing`, `end`.

`transitions` names the handler of each event and phase. A handler takes the run and gives commands.
"""
