"""The adaptive policy (Odyssey): asks for candidates after each change, and takes the one that is worth most.

- `adaptive`: the policy, its ranking and its reasons; `first_plan`: how a job begins.
- `candidates`: the table of sources, and all that is found out of their candidates before they are judged.
- The sources: `new_pipelines` (as the planner reconfigures, also with fewer replicas), `rings` (shadows),
  `other_policies` (reroute, a grid from the checkpoint, samples left out). Another one is a line of the table.
- `canonical`: requests that differ in numbers of nodes alone have one answer.
- `chosen_devices`: how many devices a stage is on, where that is left open, under any policy.
- `objective`: what a candidate is worth until the next loss.

Imports the other policies; none of them imports this.
"""
