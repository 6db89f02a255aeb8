"""Streams: samples that come one after the other, without a length or a number to ask for them by.

- `blocks`: a stream's samples on disk, in its own order, by number; whoever needs one waits for its block.
- `openers`: a user's function or rows of the hub as samples, from the beginning or from a saved position.
- `reader`: the one process that reads and writes blocks; `reader_process`: starts it, and again when it is gone.
- `shelf`: how many blocks lie in a folder.
- `shuffled`: blocks as samples to be dealt, in a seeded order.
- `preparation`: looks at a stream's first samples, and whether it is the one whose blocks a folder has.

All of it is a cache: a block can be read again at any time, and must then be the same.
"""
