"""A witness of its own: reads what runs recorded, and decides whether what must hold has held.

It shares no code with Planaria, and imports none of it (a contract in pyproject.toml): a mistake in the
protocol's rules is not made here once more. A history is plain values, as they stand in JSON.

- `history`: the kinds of entries, in the order in which things happened.
- `rules`: what is decided, a sentence each.
- `journal`: what the journal says, entry after entry, as far as rules ask.
- `decisions`: plans, votes and commits. `sums`: each microbatch's contribution. `applied`: what workers did.
- `audited`: what was run again, and accusations. `plan_updates`: plans that a journal has as what changed.
- `told`: what users were told. `checkpoints`: manifests and their files.
- `witness`: all of them over one history. `run_folder`: a real run's folder as a history, and its files.
- `forgeries`: changes of histories that the witness must find.
"""
