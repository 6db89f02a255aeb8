"""The job file: its sections, how it is read and checked, and the faults that a user asks for.

- `settings`: the sections, one frozen struct each, defaults and units; `data_settings`: of them, [data] and [eval].
- `section`: what each of them is; `parse`: from text to a `Job`.
- `checks`: values that are impossible, alone or together (batch sizes, nodes, names of zones), with the remedy;
  `data_checks`: those of [data] and [eval]; `values`: what any value must be, whatever its field.
- `suggestions`: what a name that does not exist was meant to be, also in other libraries' words.
- `faults`: `--fail`; `history`: what determined a run's samples; `errors`: the root of all errors; `version`.
- `users_code`: functions of the user's that a job names.
- `registry`: every name that stands for a policy, a model family, an optimizer, a data source or a launcher.

It imports the plan's schedule kinds alone. A new field goes into `settings`, and what it excludes into `checks`.
"""
