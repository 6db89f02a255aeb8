"""Planaria from Python: `load_job`, `train`, `reference`, `plan`. The CLI is a thin layer over these.

This module owns what surrounds a run (its folder, its display); it never trains or plans itself. torch is
imported only when something runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from planaria.estimate.restore_time import Storage
from planaria.job.errors import UserError as UserError
from planaria.job.faults import Fault, check_faults, parse_fault
from planaria.job.parse import job_from_table, load_job, sections, validated
from planaria.job.registry import Launcher
from planaria.job.sections.run import RunSection
from planaria.job.settings import Job as Job
from planaria.job.values import check_name
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.costs.profile_check import decode_profile
from planaria.plan.plan import PlanError
from planaria.protocol.messages.records import AnyRecord
from planaria.runtime.launch import given
from planaria.runtime.launch.callbacks import Callback as Callback
from planaria.runtime.launch.callbacks import LiveRun as LiveRun
from planaria.runtime.launch.callbacks import named
from planaria.runtime.launch.plan_report import PlanReport as PlanReport
from planaria.runtime.launch.plan_report import evaluations_of
from planaria.runtime.launch.plan_report import plan_for as plan_for
from planaria.runtime.launch.training.folder import JobFolder, job_folder
from planaria.runtime.launch.training.result import TrainResult
from planaria.runtime.progress.output import Output
from planaria.runtime.progress.progress import ProgressDisplay
from planaria.runtime.run_folder.run_folder import RunFolder, free_name

__all__ = [
    "Callback",
    "Job",
    "LiveRun",
    "Observer",
    "PlanReport",
    "TrainResult",
    "UserError",
    "export",
    "launch_on_ray",
    "load_job",
    "plan",
    "plan_for",
    "read_profile",
    "reference",
    "train",
]

Observer = Callable[[AnyRecord, float], None]
"""Called with each record of a run, and its time in seconds since 1970."""


def train(
    job: Job | Mapping[str, Any],
    *,
    model: object = None,
    dataset: object = None,
    eval_dataset: object = None,
    name: str | None = None,
    resume: bool = False,
    faults: Sequence[Fault | str] = (),
    observers: Sequence[Observer] = (),
    callbacks: Sequence[Callback] = (),
    progress: bool = False,
    import_path: Path | None = None,
    token: str = "",
    accept_changed_data: bool = False,
) -> TrainResult:
    """Trains a job on worker processes of this machine, or on the nodes whose agents offer them (`cluster.launcher`).

    Losses of nodes are survived.

    Args:
        job: what to train: a `Job`, or a job file's sections as dicts.
        model: in place of model.type, on this machine: a list of layers, a module, or a function that returns one.
        dataset: in place of data.source: a map-style dataset, or a function that returns one.
        eval_dataset: in place of eval.source.
        name: of the run; default: the job's, or "run".
        resume: go on from the last checkpoint of the run of this name.
        faults: nodes to kill, as `Fault` or "kill:node=2,step=20,at=backward".
        observers: called with each record of the run, by what supervises it: they are to return at once.
        callbacks: called with each record of the run and a `LiveRun`, in a thread of their own; beside run.callbacks.
        progress: show the run's progress on standard error.
        import_path: folder in which functions given as "module:function" are looked for.
        token: that agents must show; "": a new one, which lies in the run folder.
        accept_changed_data: with `resume`, go on even where the data are not those of before.

    Returns:
        How the run ended, whatever the end.

    Raises:
        UserError: the job, the name or a fault cannot be used; no run folder is left behind.
    """
    from planaria.checkpoint.retries import at_first_contact, told_by
    from planaria.runtime.launch.session import train_job
    from planaria.runtime.launch.training.request import TrainRequest
    from planaria.runtime.machine.interrupts import interrupts, raise_interrupted

    objects = _objects(model, dataset, eval_dataset)
    folder, own_name = _place(job)
    name = name or own_name or "run"
    check_name("run.name", name)
    run = RunFolder(Path(folder) / name)
    checked = _checked(job, run.path, objects)
    parsed = tuple(parse_fault(fault) if isinstance(fault, str) else fault for fault in faults)
    check_faults(parsed, checked)

    def once(resumes: bool, shown_token: str) -> TrainResult:
        with (
            interrupts(raise_interrupted),
            told_by(lambda level, text: Output(sys.stderr).say(text)) if progress else contextlib.nullcontext(),
            contextlib.nullcontext() if resumes else at_first_contact(),
            job_folder(checked, run.path.name, resume=resumes) as own,
            _shown(own, observers, progress=progress) as shown,
        ):
            given.save(own.folder.path, objects)
            return train_job(
                TrainRequest(
                    job=own.job,
                    folder=own.folder,
                    faults=parsed,
                    resume=resumes,
                    observers=shown,
                    callbacks=named(callbacks),
                    import_path=import_path,
                    token=shown_token,
                    earlier=own.earlier,
                    accept_changed_data=accept_changed_data,
                )
            )

    if checked.cluster.launcher is not Launcher.RAY:
        return once(resume, token)
    return _train_on_ray(checked, run, once, resume, progress, import_path, token)


def _train_on_ray(
    job: Job,
    run: RunFolder,
    once: Callable[[bool, str], TrainResult],
    resume: bool,
    progress: bool,
    import_path: Path | None,
    token: str,
) -> TrainResult:
    """Trains a job by `once`, on nodes that Ray keeps. Raises UserError, also where Ray is not installed."""
    try:
        from planaria.runtime.engines.ray import train_on_ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise UserError(f"Ray cannot be imported ({error}). Install it on all nodes: pip install ray.") from None
    if run.path.exists() and not resume:
        raise UserError(
            f"run folder {run.path} exists already. Go on with it by resume (--resume), or give another name (--name)."
        )
    if resume and not run.path.exists():
        raise UserError(f"run folder {run.path} does not exist. Correct the name, or train first, without --resume.")
    return train_on_ray(
        job,
        RunFolder(run.path.absolute()),
        once,
        lambda line: Output(sys.stderr).say(line) if progress else None,
        import_path=(import_path or Path()).absolute(),
        token=token,
    )


def launch_on_ray(
    job: Job | Mapping[str, Any],
    *,
    nodes: int | tuple[int, int] | None = None,
    spares: int | None = None,
    address: str | None = None,
    cpus: float | None = None,
    gpus: float | None = None,
    wait_s: float | None = None,
    **of_train: Any,
) -> TrainResult:
    """Trains a job on nodes of a Ray cluster, from a driver: as `train`, with an agent on each node that Ray runs.

    A node that dies is replaced as soon as Ray has another; one that drains hands over its work. Needs the extra `ray`,
    on every node, and a run folder that all see. `train` does the same with a job whose cluster.launcher is "ray".

    Args:
        job: what to train; its cluster.launcher is set.
        nodes: that train, or (least, most) of a run that grows. None: as cluster.nodes says, and likewise below.
        spares: as cluster.ray.spares.
        address: as cluster.ray.address. A driver that is connected already stays as it is.
        cpus: as cluster.ray.cpus.
        gpus: as cluster.ray.gpus.
        wait_s: as cluster.ray.wait_s.
        of_train: what else `train` takes, but objects: name, resume, observers, callbacks, progress, import_path, ...

    Raises:
        UserError: Ray is not there, or has too few nodes; or as `train`.
    """
    table = msgspec.to_builtins(job) if isinstance(job, Job) else job
    before = table.get("cluster", {})
    asked = {"spares": spares, "address": address, "cpus": cpus, "gpus": gpus, "wait_s": wait_s}
    ray = {**(before.get("ray") or {}), **{field: value for field, value in asked.items() if value is not None}}
    cluster = {**before, "launcher": Launcher.RAY.value, "ray": ray}
    if nodes is not None:
        cluster["nodes"] = nodes if isinstance(nodes, int) else dict(zip(("least", "most"), nodes, strict=True))
    return train({**table, "cluster": cluster}, **of_train)


def reference(
    job: Job | Mapping[str, Any],
    *,
    model: object = None,
    dataset: object = None,
    eval_dataset: object = None,
    name: str | None = None,
    observers: Sequence[Observer] = (),
    progress: bool = False,
    import_path: Path | None = None,
    replay: Path | None = None,
) -> TrainResult:
    """Trains a job in this process alone, without any of the machinery: the oracle for `train`.

    Args:
        job: what to train: a `Job`, or a job file's sections as dicts.
        model: in place of model.type, see `train`.
        dataset: in place of data.source.
        eval_dataset: in place of eval.source.
        name: of the run; default: the job's (or "run") with "-reference", or the first free of "-reference-2", ...
        observers: called with each record of the run.
        progress: show the run's progress on standard error.
        import_path: folder in which functions given as "module:function" are looked for.
        replay: folder of a run; its samples come in its order, those that it left out are left out here too, and where
            it was made longer, the learning rate follows the same schedules.

    Raises:
        UserError: the job, the name or the folder cannot be used; no run folder is left behind.
    """
    from planaria.runtime.launch.reference import train_reference
    from planaria.runtime.launch.training.resumption import history_of
    from planaria.runtime.run_folder.recorder import read_drops

    objects = _objects(model, dataset, eval_dataset)
    folder, own_name = _place(job)
    name = name or free_name(folder, f"{own_name or 'run'}-reference")
    job = _checked(job, Path(folder) / name, objects)
    run = None if replay is None else RunFolder.open(replay)
    drops = {} if run is None else read_drops(run.events)
    history = () if run is None else history_of(run, job)
    with (
        job_folder(job, name, resume=False) as own,
        _shown(own, observers, progress=progress) as shown,
    ):
        given.save(own.folder.path, objects)
        return train_reference(
            own.job, own.folder, observers=shown, import_path=import_path, drops=drops, history=history
        )


def plan(
    job: Job | Mapping[str, Any],
    profile: ModelProfile | None = None,
    *,
    import_path: Path | None = None,
    search: Mapping[str, Any] | None = None,
    losses: Sequence[Collection[int | str]] = (),
) -> PlanReport:
    """Returns the plan that a job would start with, or have after losses; nothing is trained.

    Args:
        job: what to plan: a `Job`, or a job file's sections as dicts.
        profile: costs of the model's layers; measured here when absent (which needs torch and some seconds).
        import_path: folder in which functions given as "module:function" are looked for.
        search: fields of `PlannerSettings` that the job file does not have, for instance {"thorough": True}.
        losses: nodes that are lost between two steps, at once or one after the other; "2:1": a device of node 2 alone.

    Raises:
        ValueError: the job cannot be planned on its nodes; the message says why and what to do.
    """
    from planaria.planner.instantiation.microbatch_shares import batches_told_by
    from planaria.runtime.component_settings import check_size, checkpoint_interval_s, job_profile, planner_settings
    from planaria.runtime.launch.expected_losses import expected_losses
    from planaria.runtime.machine.limits import shared_cores

    job = _checked(job)
    check_size(job)
    expected = expected_losses(job)
    if profile is None:
        from planaria.runtime.launch.training.profiling import profile_job

        profile = profile_job(job, import_path=import_path)
    if profile.microbatch_size != job.train.microbatch:
        raise UserError(
            f"The profile has the times of microbatches of {profile.microbatch_size}, and train.microbatch is "
            f"{job.train.microbatch}. Set train.microbatch = {profile.microbatch_size}, or give another profile."
        )
    settings = dataclasses.replace(planner_settings(job, profile), num_cores=shared_cores(job), **(search or {}))
    with batches_told_by("train.global_batch", job.train.microbatch):
        report = plan_for(
            job_profile(job, profile),
            settings,
            policy=job.resilience.policy,
            mean_time_between_failures_s=expected.time_to_next_s(0.0),
            nodes_together=expected.nodes_together,
            checkpoint_every=job.run.checkpoint_every or 0,
            checkpoint_every_s=checkpoint_interval_s(job.run, expected.time_to_next_s(0.0)),
            storage=Storage(node_bytes_per_s=job.cluster.storage_gb_per_s * 1e9),
            losses=losses,
            zones={node: job.cluster.zone_of(node) for node in range(job.cluster.least_nodes) if job.cluster.zones},
        )
    evaluations = evaluations_of(job, report)
    return dataclasses.replace(report, profile=profile, evaluations=evaluations)


def export(run: str | Path, target: str | Path, *, step: int | None = None, adapters: bool = False) -> None:
    """Writes a checkpoint of a run and its tokenizer as a Hugging Face folder, from which `from_pretrained` loads.

    Args:
        run: the run's folder.
        target: the folder to write; it is empty, or not there.
        step: of the checkpoint; None: the newest that is whole.
        adapters: write the adapters of [model.lora] alone, for peft; otherwise they are merged into the weights.

    Raises:
        UserError: there is no such run or checkpoint, the model is not Hugging Face's, or nothing can be written there.
    """
    from planaria.runtime.launch.export import export_run

    export_run(Path(run), Path(target), step, adapters=adapters)


def read_profile(path: Path) -> ModelProfile:
    """Reads a `ModelProfile` from its JSON file; see docs/reference/profile-format.md.

    Raises:
        UserError: there is none in it, or one that makes no sense; names the layer, the field and the value.
    """
    try:
        return decode_profile(path.read_bytes())
    except OSError as error:
        raise UserError(f"profile {path} cannot be read: {error.strerror}. Make it by planaria profile.") from None
    except PlanError as error:
        raise UserError(f"profile {path}: {error}") from None


def _objects(model: object, dataset: object, eval_dataset: object) -> dict[str, object]:
    """Returns the objects that are given, by the section in which they take a name's place."""
    found = {"model": model, "data": dataset, "eval": eval_dataset}
    return {section: one for section, one in found.items() if one is not None}


def _place(job: Job | Mapping[str, Any]) -> tuple[str, str | None]:
    """Returns where the job's run folders are made, and its run's name."""
    run = job.run if isinstance(job, Job) else sections({"run": job.get("run", {})}, _Run)["run"]
    return run.folder, run.name


class _Run(msgspec.Struct, frozen=True):
    run: RunSection


def _checked(
    job: Job | Mapping[str, Any], folder: Path | None = None, objects: Mapping[str, object] | None = None
) -> Job:
    """Returns the job, checked, with what loads objects from its run's folder in their places."""
    if not objects or folder is None:
        return validated(job) if isinstance(job, Job) else job_from_table(job)
    table = msgspec.to_builtins(job) if isinstance(job, Job) else job
    checked = job_from_table(given.with_objects(table, folder, objects))
    if checked.cluster.launcher is not Launcher.LOCAL:
        raise UserError(
            f"cluster.launcher = {checked.cluster.launcher.value!r}: objects are for the processes of this machine. "
            'Name them in the job: model.type = "module:function", data.source = "module:function".'
        )
    return checked


@contextlib.contextmanager
def _shown(own: JobFolder, observers: Sequence[Observer], *, progress: bool) -> Iterator[tuple[Observer, ...]]:
    """Returns the observers, with the progress display among them if wanted."""
    if not progress:
        yield tuple(observers)
        return
    with ProgressDisplay(own.job, own.folder) as display:
        yield (*observers, display)
