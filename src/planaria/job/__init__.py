"""The job file: its sections, how it is read and checked, and the faults that a user asks for.

- `settings`: the sections, one frozen struct each; `parse`, `checks`, `suggestions`: from text to a `Job`.
- `faults`: `--fail`; `history`: what determined a run's samples.
- `errors`: the root of all errors; `version`: of Planaria itself.

It imports nothing of Planaria. A new field goes into `settings`, and what it excludes into `checks`.
"""
