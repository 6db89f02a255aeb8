"""What the coordinator's real transitions make of a disturbance, until the job trains undisturbed.

- `episode`, `initial_run`: how it begins and goes on; `situation`: a state of training, up to names of nodes.
- `subject`: what episodes are told, and tell; `episode_cache`, `answers`: what happened once before.
- `counted`, `spending`: work and time within a step.

Something else that may befall a run is an event that `episode` gives to the coordinator.
"""
