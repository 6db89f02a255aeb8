"""A training run from job to result, and what else is started from a job.

- `session`: `planaria train`, stage by stage; `training/`: the stages; `supervisor`: keeps a coordinator serving.
- `reference`: the oracle, one process alone; `export`: a run's weights for Hugging Face.
- `callbacks`: functions of the user's that hear of a run's records; `given`: models and datasets that are Python
  objects; `plan_report`: what `planaria plan` tells.
- `rehearsal/`: jobs under a script of failures; `expected_losses`: how often nodes are lost, by job or trace.
"""
