"""Where a run is shown beside its folder, and who is told: [observe] of the job file. None of it can hurt training.

- `view`: what each of them is; `view_thread`: each in a thread of its own, behind a bounded queue.
- `views`: those of a job; a new one is a module and a line there. `figures`: what all of them show of a record.
- `tensorboard_files`, `wandb_run`, `mlflow_run`: the run as a curve; `prometheus_page`: the run as it is now.
- `dashboard_page`: the page of `planaria dashboard`, in a process of its own.
- `alerts`: what is worth a message, and how often; `webhook` and `shell_command`: who gets it.
- `secret_urls`: what nobody else may read. `thresholds`: how long each may take.
"""
