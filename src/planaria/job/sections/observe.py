"""[observe]: where a run can be watched, and whom it tells."""

from __future__ import annotations

from urllib.parse import urlsplit

from planaria.job.errors import UserError
from planaria.job.sections.section import Section
from planaria.job.values import refuse


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
        metrics_token_file: file, readable by you alone, with the token that Prometheus shows (16 characters or more);
            "": on loopback none is needed, elsewhere it is that of the file metrics-token in the run folder.
        dashboard_port: TCP port on loopback at which the run's page is served while it lasts (the extra dashboard), as
            `planaria dashboard` serves it; 0: none.
        webhook: URL that is told, in JSON as Slack takes it, that a run is degraded, waits, is exhausted, has ended, or
            has given a checkpoint up; "": none. It is kept secret: no message shows it, and job.json leaves it out.
        command: command of the shell that is run for the same; "": none.
        instructions: whether every worker writes what it did when into the logs, for `planaria trace-steps`; some 80
            bytes for each forward, backward, message and sum. Goes with nodes of this machine.
    """

    tensorboard: bool = False
    wandb: str = ""
    mlflow: str = ""
    metrics_port: int = 0
    metrics_token_file: str = ""
    dashboard_port: int = 0
    webhook: str = ""
    command: str = ""
    instructions: bool = False


def check_observe(observe: ObserveSection) -> None:
    """Refuses an [observe] that cannot be. A URL may be secret, and is not shown. Raises UserError."""
    for name in ("metrics_port", "dashboard_port"):
        if not 0 <= (port := getattr(observe, name)) <= 65535:
            refuse(f"observe.{name}", port, "is not a TCP port", "Set 1 to 65535, or 0 for none.")
    for name in ("wandb", "command"):
        value = getattr(observe, name)
        if "\0" in value or (value and not value.strip()):
            refuse(f"observe.{name}", value, "is empty or has a NUL character", "Give a text, or leave the line out.")
    if observe.webhook and not _is_http(observe.webhook):
        raise UserError(
            "observe.webhook is not a URL of http or https (it is not shown, as it may be secret). "
            'Write for instance "https://hooks.slack.com/services/...".'
        )
    if observe.mlflow and not _is_one_line(observe.mlflow):
        raise UserError('observe.mlflow is neither a URL nor a folder. Write for instance "http://127.0.0.1:5000".')


def _is_one_line(text: str) -> bool:
    return text.isascii() and text.isprintable() and bool(text.strip())


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        is_whole = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return is_whole and parts.scheme in ("http", "https") and _is_one_line(url) and " " not in url
