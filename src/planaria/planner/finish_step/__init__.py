"""The rest of a step after a loss within it: only what was lost runs again.

- `salvage`: which microbatches still count, for which layers, and the plan that finishes the step.
- `rerun_routes`: routes for the microbatches that are missing.
- `shadow_takeover`: shadows go on in the place of lost workers (Bamboo).

A new way to finish a step is a module here, which `planaria.policy.finishing` may choose.
"""
