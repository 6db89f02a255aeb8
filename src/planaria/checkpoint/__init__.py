"""Checkpoints on disk: their files, and whether they are whole. `planaria.protocol.step.cadence` says when one is due.

- `manifest`: which files make a whole checkpoint, with checksums; finds the last one, removes old ones.
- `state`: the file of one group's parameters and optimizer state.
- `start`: state that another job begins with, from one of these or from torch.distributed.checkpoint.
- `weights`: weights that a job begins with, fetched where they are not on this machine.
- `store`: the place where the files lie: a folder here (`local_store`), or a URL (`remote_store`).
- `retries`: calls to a store that fail are tried again, and people are told.
- `numerics`: the version of the numbers that a checkpoint goes on with.
"""
