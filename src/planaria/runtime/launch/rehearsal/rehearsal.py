"""Rehearses a job on emulated devices of this machine under a script of failures, and reports what came of it.

Everything but the compute is real: processes, sockets, kills, plans, recoveries. It changes nothing of how a job runs.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from planaria.job.checks import check_job
from planaria.job.errors import UserError
from planaria.job.history import JobInterval
from planaria.job.parse import job_json
from planaria.job.registry import Launcher, PolicyName
from planaria.job.sections.cluster import LOOPBACK, Device
from planaria.job.sections.observe import ObserveSection
from planaria.job.sections.resilience import NO_PREEMPTION
from planaria.job.sections.train import LrSchedule
from planaria.job.settings import Job
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.plan import NodeId
from planaria.planner.instantiation.microbatch_shares import batches_told_by
from planaria.policy.planner import Planner
from planaria.policy.templates import TemplatesPolicy
from planaria.protocol.messages.records import Evaluated, NodeLost, RunStatus, StepCommitted
from planaria.runtime.component_settings import job_profile, planner_settings
from planaria.runtime.coordinator.executor import Observer
from planaria.runtime.launch.rehearsal.replay import Replay, Say
from planaria.runtime.launch.session import train_job
from planaria.runtime.launch.training.request import TrainRequest
from planaria.runtime.launch.training.result import TrainResult
from planaria.runtime.nodes.local_nodes import LocalNodes
from planaria.runtime.run_folder.claim import claimed
from planaria.runtime.run_folder.recorder import read_drops, read_events, write_atomically
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.thresholds import LEAST_LENGTH_S
from planaria.simulate.traces import tally as tallies
from planaria.simulate.traces.scripts import STEPS, Clock, Script, ScriptName, built_in, thinned, zones_by_number
from planaria.simulate.traces.tally import Curve, RunTally

ENDLESS_STEPS = 10**9
"""Steps of a rehearsed job: practically endless, as the script says when it is over."""


class Rehearsed(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a job under a script. Times in seconds since the script began.

    Attributes:
        policy: that made the plans.
        script: its name.
        clock: what the script counts.
        length: of the script, by its clock.
        status: how the run ended; "stopped" is how it does when the script is over.
        is_played: the script came to its end.
        message: of the run, one sentence for people.
        unplanned_losses: nodes that were lost though the script did not take them.
        folder: the run's folder.
        tally: figures; None, as all that follows, where the run ended before the script began.
        throughput: samples a second.
        live_nodes: that the job had.
        script_nodes: that the script let it have; None of a script by steps.
        signal: that interrupted it; 0: none did.
    """

    policy: PolicyName
    script: str
    clock: Clock
    length: float
    status: RunStatus
    is_played: bool
    message: str
    unplanned_losses: int
    folder: str
    tally: RunTally | None = None
    throughput: Curve | None = None
    live_nodes: Curve | None = None
    script_nodes: Curve | None = None
    signal: int = 0

    @property
    def is_cut(self) -> bool:
        """Whether the user ended it."""
        return self.status in (RunStatus.STOPPED, RunStatus.INTERRUPTED) and not self.is_played


def rehearsed_job(job: Job, profile: Path, script: Script) -> Job:
    """Returns the job as it is rehearsed: on emulated devices of this machine, from the script's first nodes to its
    end, which are in the script's zones where it says so. It is shown nowhere else (`[observe]`).

    Args:
        job: a job for any device.
        profile: file of its profile.
        script: whose nodes at the beginning are the job's.

    Raises:
        UserError: it cannot be run so, for instance under its policy.
    """
    rehearsed = replace(
        job,
        # Losses are made up, and so may the learning rate be: it must not depend on how many steps there are.
        train=replace(
            job.train, steps=ENDLESS_STEPS, lr_schedule=LrSchedule.CONSTANT.value, warmup_steps=0, decay_steps=0
        ),
        cluster=replace(
            job.cluster,
            nodes=len(script.trace.initial),
            zones=zones_by_number(script.trace) or job.cluster.zones,
            device=Device.EMULATED,
            profile=str(profile),
            launcher=Launcher.LOCAL,
            ray=None,
            host=LOOPBACK,
            port=0,
            tls="",
            data_encryption=True,
        ),
        run=replace(job.run, journal=""),
        resilience=replace(job.resilience, preemption=NO_PREEMPTION),
        observe=ObserveSection(),  # nobody need be alarmed
    )
    check_job(rehearsed)
    return rehearsed


def fitted(script: Script, num_nodes: int) -> tuple[Script, str]:
    """Returns the script for a job of so many nodes, and what was done about it ("": nothing).

    Raises:
        UserError: it begins with fewer.
    """
    there = len(script.trace.initial)
    if there < num_nodes:
        raise UserError(
            f"{script.name} begins with {there} node{'' if there == 1 else 's'}, and cluster.nodes is {num_nodes}. "
            f"Begin at a part with more (--from or --busiest), or --set cluster.nodes={max(1, there)}."
        )
    if there == num_nodes:
        return script, ""
    told = (
        f"{script.name} begins with {there} nodes, and cluster.nodes is {num_nodes}: of all its nodes every "
        f"{there / num_nodes:.3g}th is taken"
    )
    return replace(script, trace=thinned(script.trace, num_nodes)), told


def script_for(name: ScriptName, job: Job, profile: ModelProfile, length_s: float | None = None) -> Script:
    """Makes a built-in script for a job: it strikes places of the plan with which the job begins under templates.

    Args:
        name: the script's name.
        job: the job on whose nodes it is played.
        profile: the profile of the job's costs.
        length_s: of the script; None: what its steps are estimated to take, at least LEAST_LENGTH_S.

    Raises:
        PlanError: the job cannot be planned.
    """
    settings = planner_settings(job, profile)
    with batches_told_by("train.global_batch", job.train.microbatch):
        policy = TemplatesPolicy.of(Planner(job_profile(job, profile), settings))
        first = policy.initial([NodeId(node) for node in range(settings.num_nodes)], 1)
    if length_s is None:
        length_s = max(LEAST_LENGTH_S, STEPS[name] * first.step_time_s)
    least_nodes = (settings.fault_tolerance + 1) * policy.planner.templates[0].num_nodes
    return built_in(name, first.plan, length_s, least_nodes=least_nodes)


def rehearse(
    job: Job,
    folder: RunFolder,
    script: Script,
    nodes: LocalNodes,
    *,
    observers: Sequence[Observer] = (),
    say: Say = lambda line: None,
) -> Rehearsed:
    """Runs a job under a script, to the script's end or the job's.

    Args:
        job: as `rehearsed_job` makes it.
        folder: of the run, new.
        script: the script of what befalls the job.
        nodes: started; they may serve another run before and after.
        observers: functions that get every record.
        say: takes a line for each thing that the script does, from another thread.

    Raises:
        UserError (or another ValueError of Planaria's): the job cannot be run.
    """
    write_atomically(folder.job, job_json(job))
    with Replay(script, nodes, job.cluster.devices_per_node, folder.contact, say) as replay:
        result = train_job(TrainRequest(job=job, folder=folder, observers=(*observers, replay)), nodes)
    return _result(job, script, result, replay)


def _result(job: Job, script: Script, result: TrainResult, replay: Replay) -> Rehearsed:
    told = list(read_events(RunFolder(result.folder).events))
    unplanned = {record.node for record, _ in told if isinstance(record, NodeLost)} - replay.killed
    ended = Rehearsed(
        policy=job.resilience.policy,
        script=script.name,
        clock=script.clock,
        length=script.trace.horizon_s,
        status=result.status,
        is_played=replay.is_played,
        message=result.message,
        unplanned_losses=len(unplanned),
        folder=str(result.folder),
        signal=result.signal or 0,
    )
    began_s = tallies.begin_of(told)
    if began_s is None:
        return ended
    ended_s = _end_s(script, told, began_s, is_cut=ended.is_cut)
    batches = {"global_batch": job.train.global_batch, "microbatch": job.train.microbatch}
    return replace(
        ended,
        tally=tallies.tally(told, began_s, ended_s, **batches),
        throughput=tallies.throughput(told, began_s, ended_s, **batches),
        live_nodes=tallies.live_nodes(told, began_s, ended_s),
        script_nodes=_expected(script) if script.clock is Clock.SECONDS else None,
    )


def _end_s(script: Script, told: tallies.Told, began_s: float, *, is_cut: bool) -> float:
    """Returns the end of the window. A script by time counts whole, though the job ended before, unless it was cut."""
    if script.clock is Clock.STEPS:
        return tallies.end_of(told, script.trace.horizon_s)
    length_s = script.trace.horizon_s
    return min(began_s + length_s, max(began_s, told[-1][1])) if is_cut else began_s + length_s


def _expected(script: Script) -> Curve:
    counts = [*script.trace.counts()]
    last = counts[-1][1]
    at_s = (*(at_s for at_s, _ in counts), script.trace.horizon_s)
    return Curve(at_s=at_s, value=tuple(float(count) for count in (*(count for _, count in counts), last)))


@contextlib.contextmanager
def new_folder(root: str | Path, name: str) -> Iterator[RunFolder]:
    """Yields a new run folder; if the job is refused or interrupted before its first record, the folder is removed
    again and its name stays free.

    Raises:
        UserError: the name is taken, or is no folder's name.
    """
    if (Path(root) / name).exists():
        raise UserError(f"{Path(root) / name} exists already. Choose another name by --name NAME.")
    folder = RunFolder.create(root, name)
    with claimed(folder.claim):
        try:
            yield folder
        except (ValueError, KeyboardInterrupt):
            if not (folder.events.exists() and folder.events.stat().st_size):
                shutil.rmtree(folder.path, ignore_errors=True)
            raise


def differences(job: Job, folder: RunFolder, scratch: RunFolder) -> list[str]:
    """Returns how a rehearsed run differs from one process alone: nothing, if every microbatch counted exactly once.

    What the policy left out, by the run's records, the one process leaves out too.

    Args:
        job: that was rehearsed.
        folder: the run's folder.
        scratch: for the run of the one process, which takes as many steps.
    """
    from planaria.runtime.launch.reference import train_reference

    trained = _losses(folder)
    # It may have gone back, and been over before it came as far again.
    summary = msgspec.json.decode(folder.summary.read_bytes())
    shorter = replace(job, train=replace(job.train, steps=max(1, summary["steps"])))
    history = (JobInterval(since=0, steps=job.train.steps),)
    alone = train_reference(shorter, scratch, drops=read_drops(folder.events), history=history)
    expected = _losses(scratch)
    found = [f"step {step} has another loss" for step, loss in expected.items() if trained.get(step) != loss]
    evaluated, alone_evaluated = _evaluated(folder), _evaluated(scratch)
    both = evaluated.keys() & alone_evaluated.keys()  # its end may be none of the run's
    found += [
        f"step {step} is evaluated otherwise" for step in sorted(both) if evaluated[step] != alone_evaluated[step]
    ]
    if summary["weights_sha256"] != alone.weights_sha256:
        found.append("the weights differ")
    return found


def _evaluated(folder: RunFolder) -> dict[int, tuple[float | None, float | None]]:
    records = (record for record, _ in read_events(folder.events) if isinstance(record, Evaluated))
    return {record.step: (record.loss, record.accuracy) for record in records}


def _losses(folder: RunFolder) -> dict[int, float]:
    return {record.step: record.loss for record, _ in read_events(folder.events) if isinstance(record, StepCommitted)}
