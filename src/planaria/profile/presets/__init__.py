"""Published models on published devices, by an analytic model.

- `presets`: the profiles; `devices`: published figures of devices.
- `shapes`: what layers do, counted; `transformers`, `convolutions`: published models.

A new model is a line in `transformers` or `convolutions`, a new device a line in `devices`, each with its source.
"""
