"""How parameters are trained: optimizers, and what the job's rules say of each parameter.

- `optimizer`: what an optimizer is to the rest; `adamw`, `adam`, `sgd`, `lion`: those that there are.
- `treatment`: a parameter's own weight decay and learning rate.
- `schedule_function`: a user's learning rates; the others are in `planaria.protocol.step.schedule`.

A new optimizer is a module with an `OPTIMIZER`, and a line in `planaria.job.registry`. Its module is read by commands
that run without torch, so that torch is imported where it computes.
"""
