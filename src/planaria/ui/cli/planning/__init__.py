"""`planaria plan` and `planaria profile`: what a job would do, without training.

- `plan_commands`: arguments of both; `plan_view`: a plan's tables, JSON and SVG; `profile_view`: a profile's.
- `costs_source`: costs and settings from a job or a profile; `profile_cache`: profiles measured here before.
"""
