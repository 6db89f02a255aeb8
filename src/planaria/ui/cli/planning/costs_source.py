"""The source of `planaria plan`'s costs and settings: a job, or a profile and options."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from planaria import api
from planaria.job.errors import UserError
from planaria.job.registry import PolicyName
from planaria.job.sections.cluster import Device, StageParallelism
from planaria.plan.plan import ScheduleKind
from planaria.plan.settings import Objective, PlannerSettings
from planaria.planner.instantiation.microbatch_shares import batches_told_by, microbatches_of
from planaria.profile.of_job import ASSUMED_DEVICE, lacks_device, profile_of_job
from planaria.runtime.machine.limits import check_machine_limits
from planaria.runtime.run_folder.sentences import age
from planaria.ui.cli.planning.plan_view import PlannedModel, subject_of, subject_of_profile
from planaria.ui.cli.planning.profile_cache import ProfileCache, cache_folder

if TYPE_CHECKING:
    from planaria.job.settings import Job
    from planaria.plan.costs.model_profile import ModelProfile


_PLANNING = "planning ..."
_OF_THE_JOB = {
    "nodes": "cluster.nodes",
    "devices_per_node": "cluster.devices_per_node",
    "fault_tolerance": "resilience.fault_tolerance",
    "global_batch": "train.global_batch",
    "microbatch": "train.microbatch",
    "memory_gb": "cluster.memory_gb",
    "min_nodes": "resilience.min_nodes_per_pipeline",
    "schedule": "cluster.schedule",
    "objective": "cluster.objective",
    "policy": "resilience.policy",
    "mean_time_between_failures_s": "resilience.mean_time_between_failures_s",
    "recompute": "train.activation_checkpointing",
}
"""Options that a job file has fields for, with these fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """The options of the command, as they were given; see `planaria plan --help`."""

    device: str | None
    nodes: int | None
    devices_per_node: int
    fault_tolerance: int
    global_batch: int | None
    microbatch: int | None
    memory_gb: float | None
    min_nodes: int
    schedule: str
    recompute: bool
    objective: str
    powers_of_two: bool
    no_overlap: bool
    thorough: bool
    shadows: bool
    policy: str | None
    mean_time_between_failures_s: float
    losses: tuple[tuple[int | str, ...], ...]

    @property
    def search(self) -> dict[str, Any]:
        """The way in which templates are searched for: fields of `PlannerSettings`."""
        return {
            "powers_of_two": self.powers_of_two,
            "overlap": not self.no_overlap,
            "thorough": self.thorough,
            "shadows": self.shadows,
        }


def from_profile(path: Path | None, wanted: PlanOptions) -> tuple[PlannedModel, api.PlanReport]:
    """Returns a plan without a job.

    Raises:
        UserError: something is missing or contradicts the profile.
        PlanError: there is no such plan.
    """
    if path is None or wanted.nodes is None or wanted.global_batch is None:
        raise click.UsageError("Give a JOB, or --profile, --nodes and --global-batch.")
    profile = api.read_profile(path)
    microbatch = wanted.microbatch or profile.microbatch_size
    if microbatch != profile.microbatch_size:
        raise UserError(
            f"--microbatch {microbatch}: profile {path} has the times of microbatches of {profile.microbatch_size}. "
            "Leave it out, or give another profile."
        )
    memory = int(wanted.memory_gb * 1e9) if wanted.memory_gb else profile.device.memory_bytes
    with batches_told_by("--global-batch", microbatch):
        num_microbatches = microbatches_of(wanted.global_batch, microbatch, wanted.fault_tolerance + 1)
    settings = PlannerSettings(
        num_microbatches=num_microbatches,
        fault_tolerance=wanted.fault_tolerance,
        num_nodes=wanted.nodes,
        devices_per_node=wanted.devices_per_node,
        memory_bytes=memory,
        min_nodes=wanted.min_nodes,
        schedule=ScheduleKind(wanted.schedule),
        objective=Objective(wanted.objective),
        **wanted.search,
    )
    costs = profile.contended(wanted.devices_per_node)
    costs = costs.recomputed() if wanted.recompute else costs
    with batches_told_by("--global-batch", microbatch), busy(_PLANNING):
        report = api.plan_for(
            costs,
            settings,
            policy=PolicyName(wanted.policy) if wanted.policy else _usual_policy(settings),
            mean_time_between_failures_s=wanted.mean_time_between_failures_s,
            losses=wanted.losses,
        )
    return subject_of_profile(profile, settings, f"from {path}"), report


def _usual_policy(settings: PlannerSettings) -> PolicyName:
    return PolicyName.TEMPLATES if settings.is_oobleck else PolicyName.ADAPTIVE


def from_job(
    path: Path, overrides: Sequence[str], profile_file: Path | None, wanted: PlanOptions, *, measure: bool
) -> tuple[PlannedModel, api.PlanReport]:
    """Returns a job's plan.

    Raises:
        UserError: an option that only a plan without a job takes, or a job that cannot be planned.
    """
    context = click.get_current_context()
    given = [name for name in _OF_THE_JOB if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if given:
        raise click.UsageError(
            f"--{given[0].replace('_', '-')} is for plans without a JOB. Change the job's field, for instance by "
            f"--set {_OF_THE_JOB[given[0]]}=..."
        )
    job = api.load_job(path, overrides)
    report, costs = _report(job, path.resolve().parent, profile_file, wanted, measure=measure)
    are_used = job.cluster.device is Device.EMULATED or job.cluster.stage_parallelism is not StageParallelism.SHARDED
    if report.profile.device_counts != (1,) and not are_used:
        costs = f"{costs}; its times on several devices are for those that share microbatches"
    try:
        check_machine_limits(job)
    except UserError as error:
        click.echo(f"planaria: warning: planaria train refuses the job on this machine: {error}", err=True)
    return subject_of(job, costs), report


def _report(
    job: Job, folder: Path, profile_file: Path | None, wanted: PlanOptions, *, measure: bool
) -> tuple[api.PlanReport, str]:
    """Returns the plan, and where the costs behind it come from."""

    def planned(profile: ModelProfile | None) -> api.PlanReport:
        with busy(_PLANNING if profile else f"measuring the layers of {job.model.type} ..."):
            return api.plan(job, profile, import_path=folder, search=wanted.search, losses=wanted.losses)

    if profile_file is None and job.cluster.profile is not None:
        profile_file = Path(job.cluster.profile)
    if wanted.device is not None and profile_file is not None:
        raise click.UsageError("--device and --profile exclude each other. Drop one of them.")
    if profile_file is not None:
        return planned(api.read_profile(profile_file)), f"from {profile_file}"
    if wanted.device is not None or lacks_device(job):
        with busy("computing the costs ..."):
            profile = profile_of_job(job, wanted.device or ASSUMED_DEVICE)
        why = "" if wanted.device else "as this machine has no GPU to measure on; --device and --profile give others"
        return planned(profile), f"computed for {profile.device.name}, not measured{f', {why}' if why else ''}"
    cache = ProfileCache(cache_folder(os.environ))
    kept = None if measure else cache.find(job)
    if kept is not None:
        costs = f"measured on this machine {age(kept[1])} ago; --measure does it again"
        return planned(kept[0]), costs
    report = planned(None)
    try:
        cache.keep(job, report.profile)
    except OSError as error:
        click.echo(f"planaria: warning: the profile could not be kept: {error}", err=True)
    return report, "measured on this machine now"


def busy(what: str) -> AbstractContextManager[object]:
    """Returns a sign of life on standard error, where that is a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    return console.status(what) if console.is_terminal else nullcontext()
