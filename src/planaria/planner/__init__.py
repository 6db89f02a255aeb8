"""How plans are found. One folder for each decision; no policy is known here.

- `templates/`: layers into stages, for each number of nodes; `instantiation/`: how many pipelines of which template.
- `placement/`: which node takes which part, who sends it state; `reconfigure/`: the next plan after losses and joins.
- `finish_step/`: the rest of a step that a loss struck; `reroute/`: routes over what is left, no state moved.
- `rings`: pipelines whose workers shadow each other; `dropped_samples`: plans that leave samples out.
- `stage_devices`: a plan whose stages are places of several devices, and the same plan by device; `place_costs`: what
  layers cost such a place.

It imports `plan` alone. A new way to make plans is a module here; when it is taken is for `planaria.policy`.
"""
