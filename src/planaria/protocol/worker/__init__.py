"""The worker's half of the protocol, pure: the real worker and the simulated one run the same code.

- `machine`: its generation and step, what may still be done; `progress`: of its program.
- `executor`, `step_work`, `layer_runner`: an instruction's effect, and what runs layers; `session`: its coordinator.
- `holdings`, `state_transfers`: what it holds, and what is on its way; `sums`, `mail`: what is summed, what came.
- `shadow_counts`: what two workers computed of the same, counted once; `audits`: what is run again to compare.

It may import `plan` and `protocol.messages`, and never policy, estimate or simulate.
"""
