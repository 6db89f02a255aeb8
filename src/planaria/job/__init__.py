"""The job file: its sections, how it is read and checked, and the faults that a user asks for.

- `sections`: a file each, with fields, defaults, units and what is impossible; `settings`: the `Job` of all of them.
- `parse`: from text to a `Job`; `checks`: what several sections make impossible together (batch and replicas).
- `values`: what any value must be, whatever its field, and how a message shows it.
- `suggestions`: what a name that does not exist was meant to be, also in other libraries' words.
- `faults`: `--fail`; `history`: what determined a run's samples; `errors`: the root of all errors; `version`.
- `users_code`: functions of the user's that a job names.
- `registry`: every name that stands for a policy, a model family, an optimizer, a data source or a launcher.

Of the plan it imports what a job can ask for by name. A new field goes into its section's file.
"""
