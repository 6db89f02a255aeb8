"""The run as its coordinator knows it.

- `run`: where it is, who is in it, what is under way; `settings`: what the job says of it.
- `replay`: a run as its journal tells it; `returning`: workers that come back after a restart.
- `announcements`: records and messages about what was decided; `told_records`: what readers have been told.
- `spending`: what the nodes cost, and may.

Handlers change it; nothing here decides. New state of a run belongs to the object that owns it, or is a field of `run`.
"""
