"""What layers, stages and pipelines cost in seconds and bytes.

- `network`: which pair of nodes has which link.
- `model_profile`: the profile file, a field for each measured quantity; `profile_check`: whether it makes sense.
- `byte_counts`: what workers hold and send under a profile, in bytes.
- `stage_costs`: a range of layers as a stage, in closed form.
- `pipeline_time`: a chain of stages, event by event; templates; nodes of other speeds.

It imports the plan's values alone. A new measured quantity is a field of `model_profile`, checked in `profile_check`.
"""
