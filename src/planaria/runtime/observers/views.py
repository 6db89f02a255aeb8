"""The views of a job: what its [observe] asks for, if it is installed. A new view is a module and a line here."""

from __future__ import annotations

from importlib.util import find_spec

from planaria.job.errors import UserError
from planaria.job.settings import Job
from planaria.runtime.observers.alerts import Alerts
from planaria.runtime.observers.view import View

_PACKAGES = (
    ("tensorboard", "tensorboard", "tensorboard"),
    ("wandb", "wandb", "wandb"),
    ("mlflow", "mlflow", "mlflow-skinny"),
    ("metrics_port", "prometheus_client", "prometheus-client"),
    ("dashboard_port", "starlette", "starlette uvicorn"),
    ("dashboard_port", "uvicorn", "starlette uvicorn"),
)
"""Field of [observe], a module that it needs, and what pip calls its packages."""


def check_packages(job: Job) -> None:
    """Refuses what [observe] asks for and is not installed. Raises UserError."""
    for field, module, packages in _PACKAGES:
        if getattr(job.observe, field) and find_spec(module) is None:
            raise UserError(
                f"observe.{field} needs {module}, which is not installed. Install it: pip install {packages}, or leave "
                f"observe.{field} out."
            )


def views_of(job: Job, metrics_token: str) -> list[View]:
    """Returns the views that a job asks for, none of them started. Modules are imported for those alone.

    Args:
        job: with its secrets.
        metrics_token: that Prometheus has to show; "": none.
    """
    views: list[View] = []
    if job.observe.tensorboard:
        from planaria.runtime.observers.tensorboard_files import TensorBoardFiles

        views.append(TensorBoardFiles())
    if job.observe.wandb:
        from planaria.runtime.observers.wandb_run import WandbRun

        views.append(WandbRun(job.observe.wandb))
    if job.observe.mlflow:
        from planaria.runtime.observers.mlflow_run import MlflowRun

        views.append(MlflowRun(job.observe.mlflow))
    if job.observe.metrics_port:
        from planaria.runtime.observers.prometheus_page import PrometheusPage

        views.append(PrometheusPage(job.cluster.host, job.observe.metrics_port, metrics_token))
    if job.observe.webhook:
        from planaria.runtime.observers.webhook import Webhook

        views.append(Alerts(Webhook(job.observe.webhook)))
    if job.observe.command:
        from planaria.runtime.observers.shell_command import ShellCommand

        views.append(Alerts(ShellCommand(job.observe.command)))
    return views
