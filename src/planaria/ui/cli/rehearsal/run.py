"""The work of `planaria drill` and `planaria compare`: a job, its costs and a script, and then the runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec

from planaria import api
from planaria.job.errors import UserError
from planaria.job.parse import EMULATED_MODEL
from planaria.job.registry import PolicyName
from planaria.job.sections.cluster import Device
from planaria.job.settings import Job
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.quantities import count
from planaria.protocol.messages.records import RunStatus
from planaria.runtime.launch.expected_losses import expected_losses
from planaria.runtime.launch.rehearsal.comparison import Comparison, ComparisonFolder, run_policy
from planaria.runtime.launch.rehearsal.rehearsal import (
    Rehearsed,
    differences,
    fitted,
    new_folder,
    rehearse,
    rehearsed_job,
    script_for,
)
from planaria.runtime.nodes.local_nodes import LauncherError, LocalNodes
from planaria.runtime.progress.rehearsal_progress import RehearsalProgress
from planaria.runtime.run_folder.recorder import write_atomically
from planaria.runtime.run_folder.run_folder import RunFolder, free_name
from planaria.runtime.run_folder.sentences import age, duration
from planaria.simulate.traces.script_format import read_script, write_script
from planaria.simulate.traces.scripts import Clock, Script, ScriptName, announced, busiest
from planaria.ui.cli.options import EXIT_EXHAUSTED, EXIT_FAILED, EXIT_SIGNALLED, given_text, tell_repairs
from planaria.ui.cli.planning.costs_source import busy
from planaria.ui.cli.planning.profile_cache import ProfileCache, cache_folder
from planaria.ui.cli.rehearsal import view

_HOUR_S = 3600.0
_LEAST_S = 0.5
"""Least seconds of a script as it is played: below that no step can be measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalOptions:
    """The options that say what is rehearsed; see `planaria drill --help`."""

    script: str
    speed: float | None
    start_h: float | None
    length_h: float | None
    busiest_h: float | None
    notice: float | None
    length_s: float | None
    profile: Path | None
    seed: int


def drill(job_file: Path, overrides: Sequence[str], wanted: RehearsalOptions, name: str | None, *, verify: bool) -> int:
    """Plays a script on a job. Returns the exit code.

    Raises:
        UserError (or another ValueError of Planaria's): the job or the script cannot be used.
    """
    job, profile, script = _prepared(job_file, overrides, wanted)
    name = name or free_name(job.run.folder, f"{job.run.name}-drill")
    with new_folder(job.run.folder, name) as folder:
        job = msgspec.structs.replace(job, run=msgspec.structs.replace(job.run, name=name))
        _write_profile(profile, folder.profile)
        folder.script.write_text(write_script(script))
        own = rehearsed_job(job, folder.profile, script)
        with (
            RehearsalProgress(name, script, job.train.global_batch, job.cluster.devices_per_node) as display,
            LocalNodes(folder.logs / "launcher.log", EMULATED_MODEL) as nodes,
        ):
            ended = rehearse(own, folder, script, nodes, observers=(display,), say=display.say)
    found = _verified(own, folder) if verify else []
    write_atomically(folder.drill, msgspec.json.format(msgspec.json.encode(ended), indent=1) + b"\n")
    view.show_drill(ended, found if verify else None)
    view.plot_drill(ended, folder)
    click.echo(f"run folder: {folder.path}")
    if found or (ended.tally is not None and ended.tally.skipped_samples + ended.tally.duplicated_samples):
        return EXIT_FAILED
    return _exit_code(ended)


def compare(
    job_file: Path,
    overrides: Sequence[str],
    wanted: RehearsalOptions,
    name: str | None,
    policies: str | None,
    *,
    as_json: bool,
) -> int:
    """Plays a script on a job under each policy. Returns the exit code.

    Raises:
        UserError (or another ValueError of Planaria's): the job, the script or a policy's name cannot be used.
    """
    chosen = _policies(policies)
    job, profile, script = _prepared(job_file, overrides, wanted)
    folder = ComparisonFolder(job.run.folder, name or free_name(job.run.folder, f"{job.run.name}-compare"))
    folder.begin(profile, script)
    if script.clock is Clock.SECONDS:
        each = duration(script.trace.horizon_s)
        click.echo(f"{count(len(chosen), 'run')} of {script.name}, {each} each", err=True)
    comparison = Comparison(
        job=job.run.name or "",
        script=script.name,
        nodes=len(script.trace.initial),
        global_batch=job.train.global_batch,
        rows=(),
    )
    for at, policy in enumerate(chosen, 1):
        title = f"{policy.value} ({at} of {len(chosen)})"
        with RehearsalProgress(title, script, job.train.global_batch, is_brief=True) as display:
            row = run_policy(job, policy, folder, script, observers=(display,), say=display.say)
        comparison = msgspec.structs.replace(comparison, rows=(*comparison.rows, row))
        folder.keep(comparison)
        click.echo(f"{title}: {row.samples_per_s:.4g} samples/s{f'; {row.reason}' if row.reason else ''}", err=True)
        if row.is_cut:
            break
    if as_json:
        click.echo(folder.result.read_text(), nl=False)
    else:
        view.show_comparison(comparison)
    view.plot_comparison(comparison, folder)
    click.echo(f"folder: {folder.path}", err=as_json)
    last = comparison.rows[-1]
    if last.is_cut and last.rehearsed is not None and last.rehearsed.signal:
        return EXIT_SIGNALLED + last.rehearsed.signal
    return 0 if comparison.best > 0 else EXIT_FAILED


# What is rehearsed


def _prepared(job_file: Path, overrides: Sequence[str], wanted: RehearsalOptions) -> tuple[Job, ModelProfile, Script]:
    job = api.load_job(job_file, overrides)
    script = None if wanted.script in list(ScriptName) else _read(job, wanted)
    if script is None:
        _refuse(wanted, "is built in", ("speed", "start_h", "length_h", "busiest_h"), "--length says how long it is.")
    profile, origin = _costs(job, job_file.resolve().parent, wanted.profile)
    click.echo(f"costs {origin}", err=True)
    if wanted.speed is not None:  # losses come so much sooner than the job expects
        mean_s = expected_losses(job).time_to_next_s(0.0) / wanted.speed
        resilience = msgspec.structs.replace(job.resilience, mean_time_between_failures_s=mean_s, failure_trace="")
        job = msgspec.structs.replace(job, resilience=resilience)
    if script is None:
        _check_length(wanted.length_s, wanted.script, "Give a greater --length.")
        script = _announced(script_for(ScriptName(wanted.script), job, profile, wanted.length_s), wanted)
    return job, profile, script


def _check_length(length_s: float | None, name: str, remedy: str) -> None:
    if length_s is not None and length_s < _LEAST_S:
        least = duration(_LEAST_S)
        raise UserError(f"{name} would be over in {1e3 * length_s:.3g} ms; {least} is the least. {remedy}")


def _refuse(wanted: RehearsalOptions, what: str, options: Sequence[str], remedy: str) -> None:
    names = {"start_h": "--from", "length_h": "--hours", "busiest_h": "--busiest", "length_s": "--length"}
    for option in options:
        if getattr(wanted, option) is not None:
            given = names.get(option, f"--{option}")
            raise click.UsageError(f"{given} does not go with {wanted.script}, which {what}. {remedy}")


def _read(job: Job, wanted: RehearsalOptions) -> Script:
    """Returns a script from a file: the part that is wanted, as fast as is wanted, for as many nodes as the job has."""
    _refuse(wanted, "is a file", ("length_s",), "--hours takes a part of it, --speed makes it shorter.")
    path = Path(wanted.script)
    text = given_text(path, f"the path of a trace, or one of {', '.join(ScriptName)}")
    read = read_script(text, path.name, seed=wanted.seed)
    tell_repairs([f"{path.name}, {repair}" for repair in read.repairs])
    script = read.script
    most = max((event.device for event in script.trace.device_events), default=0)
    if most >= job.cluster.devices_per_node:
        raise UserError(
            f"cluster.devices_per_node = {job.cluster.devices_per_node}: {path.name} has a device {most} of a node. "
            f"Set {most + 1} or more."
        )
    if script.clock is Clock.STEPS:
        _refuse(wanted, "counts steps", ("speed", "start_h", "length_h", "busiest_h"), "Leave it out.")
        script = _announced(script, wanted)
    else:
        part = _announced(_part(script, wanted), wanted)
        script = msgspec.structs.replace(part, trace=part.trace.compressed(wanted.speed or 1.0))
        _check_length(script.trace.horizon_s, script.name, "Lower --speed, or take a longer part.")
    script, told = fitted(script, job.cluster.least_nodes)
    if told:
        click.echo(f"planaria: {told}", err=True)
    return script


def _announced(script: Script, wanted: RehearsalOptions) -> Script:
    return script if wanted.notice is None else announced(script, wanted.notice)


def _part(script: Script, wanted: RehearsalOptions) -> Script:
    trace = script.trace
    if wanted.busiest_h is not None:
        if wanted.start_h is not None or wanted.length_h is not None:
            raise click.UsageError("--busiest finds a part of its own: drop it, or --from and --hours.")
        return msgspec.structs.replace(script, trace=busiest(trace, wanted.busiest_h * _HOUR_S))
    if wanted.start_h is None and wanted.length_h is None:
        return script
    start_s = (wanted.start_h or 0.0) * _HOUR_S
    if start_s >= trace.horizon_s:
        raise UserError(f"--from {wanted.start_h:g}: {script.name} is {trace.horizon_s / _HOUR_S:.3g} hours long.")
    length_s = trace.horizon_s - start_s if wanted.length_h is None else wanted.length_h * _HOUR_S
    return msgspec.structs.replace(script, trace=trace.window(start_s, length_s))


def _costs(job: Job, folder: Path, given: Path | None) -> tuple[ModelProfile, str]:
    """Returns the job's profile, and where it comes from: a file, an earlier measurement, or one now."""
    if given is None and job.cluster.profile is not None:
        given = Path(job.cluster.profile)
    if given is not None:
        return api.read_profile(given), f"from {given}"
    cache = ProfileCache(cache_folder(os.environ))
    kept = cache.find(job)
    if kept is not None:
        return kept[0], f"measured on this machine {age(kept[1])} ago"
    from planaria.runtime.launch.training.profiling import profile_job

    try:
        with busy(f"measuring the layers of {job.model.type} ..."):
            profile = profile_job(job, import_path=folder)
    except (LauncherError, UserError) as error:
        if job.cluster.device is not Device.CUDA or (isinstance(error, UserError) and "CUDA" not in str(error)):
            raise
        why = str(error).rstrip(".")
        raise UserError(
            f"cluster.device = 'cuda' could not be measured here ({why}). Give a profile by --profile FILE: of a "
            "machine that has the device, or of a published model (planaria profile --list)."
        ) from None
    try:
        cache.keep(job, profile)
    except OSError as error:
        click.echo(f"planaria: warning: the profile could not be kept: {error}", err=True)
    return profile, "measured on this machine now"


def _policies(text: str | None) -> list[PolicyName]:
    if text is None:
        return list(PolicyName)
    chosen = []
    for name in text.split(","):
        if name.strip() not in list(PolicyName):
            raise UserError(
                f"--policies {text}: there is no policy {name.strip()!r}. There are {', '.join(PolicyName)}."
            )
        chosen.append(PolicyName(name.strip()))
    return list(dict.fromkeys(chosen))


def _write_profile(profile: ModelProfile, path: Path) -> None:
    write_atomically(path, msgspec.json.format(msgspec.json.encode(profile), indent=1))


def _verified(job: Job, folder: RunFolder) -> list[str]:
    scratch = RunFolder.create(folder.path, "alone")
    with busy("training in one process alone ..."):
        return differences(job, folder, scratch)


def _exit_code(ended: Rehearsed) -> int:
    match ended.status:
        case RunStatus.FAILED:
            return EXIT_FAILED
        case RunStatus.EXHAUSTED:
            return EXIT_EXHAUSTED
        case RunStatus.INTERRUPTED:
            return 0 if ended.is_played else EXIT_SIGNALLED + ended.signal
        case RunStatus.STOPPED | RunStatus.COMPLETED:
            return 0
