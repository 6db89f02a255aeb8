"""What is done about each event, and what follows from it.

- `joins`: nodes that come, or give notice, or are given back; `losses`, `fencing`: nodes that go; `salvage`: a loss
  inside a step, and replicas that differ.
- `step`: votes, commits, steps that are skipped, evaluations' ends; `boundary`: between steps.
- `adopt_plan`: a plan is put in force and sent.
- `checkpoints`: who is ordered to write what; `saved`: the answers, failures too; `restore`: back to the last one.
- `restart`: after a coordinator that died; `precompute`, `policy`: a switch; `end`: the end of a run.

`transitions` names the handler of each event and phase. A handler takes the run and gives commands.
"""
