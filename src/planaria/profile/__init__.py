"""Profiles that were not measured, and what a job or scenario needs of one.

- `presets/`: published models on published devices; `of_job`, `of_scenario`: without measuring.
- `calibrate`: a profile corrected by one measured number.

Measured profiles are made by `planaria.runtime.measure`.
"""
