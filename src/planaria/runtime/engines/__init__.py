"""Engines that give a job its nodes: what starts agents on a cluster, and replaces those that are lost.

- `engine`: the protocol of an engine: its tasks, one more for each that is lost, notices, the end.
- `launch_folder`: what a launch keeps beside the run folder: token, scripts, jobs, what is trained.
- `attendant`: runs the coordinator where the engine put it, goes on where the last one died; `keeper`: keeps agents.
- `own_agent`: the agent beside a coordinator whose nodes something else starts; `job_environment`: a node's rank,
  addresses and label, from what a launcher set in the environment.
- `kubernetes`: writes and applies objects; `kubernetes_manifests`: the objects.
- `slurm`: sbatch, squeue and scontrol; `slurm_scripts`: the two batch scripts.
- `ray`: a placement group and its actors; `ray_actor`: starts an agent, as a `tied_process`.

A new engine is one module with an `Engine` here, and a command in `planaria.ui.cli.launch_commands`.
"""
