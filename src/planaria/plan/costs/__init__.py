"""What layers, stages and pipelines cost in seconds and bytes.

- `model_profile`, `profile_check`: the profile file, and whether it makes sense.
- `stage_costs`: a range of layers as a stage.
- `the other modules`: a chain of stages, event by event.

It imports the plan's values alone. A new measured quantity is a field of `model_profile`, checked in `profile_check`.
"""
