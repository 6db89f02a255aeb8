"""The request for a run, and what is checked of it before anything is started or recorded."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from planaria.job.faults import Fault
from planaria.job.registry import Launcher
from planaria.job.sections.cluster import LOOPBACK
from planaria.job.settings import Job
from planaria.job.users_code import look_in
from planaria.job.values import is_function, is_loopback
from planaria.protocol.planning.failure_rate import Watched
from planaria.runtime.component_settings import check_size
from planaria.runtime.coordinator.executor import Observer
from planaria.runtime.coordinator.remote_nodes import ANY_ADDRESS, read_token, write_token
from planaria.runtime.launch.callbacks import Callback, imported
from planaria.runtime.launch.expected_losses import losses_of_trace
from planaria.runtime.machine.limits import check_machine_limits
from planaria.runtime.observers.views import check_packages
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.wire.tls import security_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """What is asked of a run.

    Attributes:
        job: what to train.
        folder: the run's folder.
        faults: nodes to kill on order.
        resume: go on from the last checkpoint in the folder.
        observers: called with each record.
        callbacks: by name; called with each record and the run. Once it is checked, those that the job names as well.
        import_path: where a model given as "module:function" is looked for.
        metadata_url: of the metadata server that resilience.preemption asks; "": the cloud's own.
        token: of the job; "": a new one.
        traces: every worker writes what it did when into the logs, for benchmarks.
        earlier: as what the folder's job was trained before; None: as this one.
        accept_changed_data: go on even where the data are not those that the checkpoint was trained on.
        watched: the losses that the job's trace tells of, once it is checked.
        rate_factors: of a schedule that is a function: what it gives for each step, once it is checked.
    """

    job: Job
    folder: RunFolder
    faults: tuple[Fault, ...] = ()
    resume: bool = False
    observers: tuple[Observer, ...] = ()
    callbacks: Mapping[str, Callback] = field(default_factory=dict)
    import_path: Path | None = None
    metadata_url: str = ""
    token: str = ""
    traces: bool = False
    earlier: Job | None = None
    accept_changed_data: bool = False
    watched: Watched = field(default_factory=Watched)
    rate_factors: tuple[float, ...] = ()


def checked(request: TrainRequest) -> TrainRequest:
    """Checks a job that this machine can be meant to run; returns its request, with the losses that its trace tells of.

    Raises:
        UserError (or a ModelError): the job is too large, its trace or schedule cannot be used, or a package is
            missing.
    """
    check_machine_limits(request.job)
    check_size(request.job)
    check_packages(request.job)
    if request.job.observe.metrics_token_file:
        metrics_token(request.job, request.folder)
    folder = request.folder
    if request.job.cluster.launcher is not Launcher.LOCAL:
        folder = RunFolder(folder.path.resolve())  # nodes have another working folder
        request = replace(request, job=_reachable(request.job))
        if tls := request.job.cluster.tls:
            cluster = msgspec.structs.replace(request.job.cluster, tls=str(Path(tls).resolve()))
            request = replace(request, job=msgspec.structs.replace(request.job, cluster=cluster))
            security_of(cluster.tls)
    factors = _rate_factors(request) if is_function(request.job.train.lr_schedule) else ()
    return replace(
        request,
        folder=folder,
        watched=losses_of_trace(request.job),
        rate_factors=factors,
        callbacks={**imported(request.job.run.callbacks, request.import_path), **request.callbacks},
    )


def _reachable(job: Job) -> Job:
    """Returns the job whose coordinator nodes of Ray can reach, where it says nothing of that."""
    if job.cluster.launcher is not Launcher.RAY or job.cluster.host != LOOPBACK:
        return job
    return msgspec.structs.replace(job, cluster=msgspec.structs.replace(job.cluster, host=ANY_ADDRESS))


def metrics_token(job: Job, folder: RunFolder) -> str:
    """Returns the token that Prometheus has to show, made and written down where there is none yet; "": no token.

    Raises:
        UserError: the file that the job names cannot be used.
    """
    observe = job.observe
    if not observe.metrics_port or (is_loopback(job.cluster.host) and not observe.metrics_token_file):
        return ""
    if observe.metrics_token_file:
        return read_token(Path(observe.metrics_token_file))
    if not folder.metrics_token.exists():
        write_token(folder.metrics_token, secrets.token_hex(16))
    return read_token(folder.metrics_token)


def _rate_factors(request: TrainRequest) -> tuple[float, ...]:
    """Calls the function that is the job's schedule."""
    from planaria.model.training.schedule_function import rate_factors  # and with it torch

    look_in(request.import_path)
    return rate_factors(request.job.train)
