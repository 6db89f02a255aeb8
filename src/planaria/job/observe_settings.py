"""The section [observe] of the job file: where a run is shown beside its folder, and who is told."""

from __future__ import annotations

from planaria.job.section import Section


class ObserveSection(Section, frozen=True):
    """[observe]

    None of these determines a number: all may be changed before a run goes on by `--resume`. A drill heeds none.
    See docs/howto/watching.md.

    Attributes:
        tensorboard: whether event files are written into the folder tensorboard of the run folder (the extra
            tensorboard).
        wandb: project of Weights & Biases that the run is logged to (the extra wandb); "": none. Account, server and
            mode are wandb's own settings, for instance WANDB_MODE=offline.
        mlflow: where MLflow keeps its runs (the extra mlflow): a server's URL or a folder; "": nowhere.
        metrics_port: TCP port at which Prometheus finds /metrics (the extra prometheus), on loopback, or at
            cluster.host; 0: none.
        webhook: URL that is told, in JSON as Slack takes it, that a run is degraded, waits, is exhausted, has ended, or
            has given a checkpoint up; "": none. It is kept secret: no message shows it, and job.json leaves it out.
        command: command of the shell that is run for the same; "": none.
    """

    tensorboard: bool = False
    wandb: str = ""
    mlflow: str = ""
    metrics_port: int = 0
    webhook: str = ""
    command: str = ""
