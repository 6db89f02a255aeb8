"""The stages of a run, in their order; `planaria.runtime.launch.session` goes through them once, none comes back to it.

1. `folder`: the run's folder, made, claimed, removed if nothing came of it. 2. `request`: what is asked for, checked,
and the token of /metrics. 3. `resumption`: the checkpoint to go on from, and whether data and job are still its own.
4. `data`: the tokens. 5. `profiling`: the costs of the layers. 6. `run`: nodes and a coordinator, until all is over.
7. `ending`: what the last record says, as a `result`. `standby` waits until another host's lead ends, and goes on.
Each takes what the ones before it gave, as frozen objects. A check of the job belongs into `request`, a new input of
training into `data`, what workers or the coordinator are told into `planaria.runtime.component_settings`.
"""
