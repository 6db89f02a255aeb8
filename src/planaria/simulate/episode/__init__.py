"""What the coordinator's real transitions make of a disturbance, until the job trains undisturbed.

- `episode`: how it goes on; `initial_run`: the run in which it begins; `situation`: training, up to names of nodes.
- `subject`: what episodes are told, and tell: an episode's seconds by cause, among others.
- `episode_cache`: what happened once is not gone through again, nor are placements asked for again; bounded.
- `counted`: microbatches within a step; `devices_alone`: devices of nodes that stay.

Something else that may befall a run is an event that `episode` gives to the coordinator.
"""
