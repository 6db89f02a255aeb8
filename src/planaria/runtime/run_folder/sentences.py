"""Puts records into sentences, so that progress display, log and CLI say the same in the same words."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from planaria.job.settings import Device, Job
from planaria.plan.quantities import size
from planaria.protocol.messages.records import (
    AnyRecord,
    CheckpointSaved,
    CoordinatorRestarted,
    NodeJoined,
    NodeLeaving,
    NodeLost,
    NodeReleased,
    NodeSpeed,
    Note,
    PlanMeasured,
    PlanTaken,
    PolicySwitched,
    Recovered,
    Recovery,
    Restored,
    RunEnded,
    StepCommitted,
    StepSkipped,
    Waiting,
)


def sentence(record: AnyRecord) -> str | None:
    """Returns what a record says to a user, in one line; None when it is told otherwise (steps, the end)."""
    match record:
        case NodeJoined():
            where = f" in zone {record.zone}" if record.zone else ""
            return f"node {record.node} joined{where}, {counted(record.live_nodes, 'node')} live"
        case NodeLost():
            seen = _cause(record.cause, record.detect_ms)
            return f"step {record.step}: node {record.node} lost ({seen}), {counted(record.live_nodes, 'node')} live"
        case NodeLeaving():
            return f"step {record.step}: node {record.node} leaves in {duration(record.grace_s)} ({record.cause})"
        case NodeReleased():
            took, live = duration(record.seconds), counted(record.live_nodes, "node")
            return f"node {record.node} has handed over its work and is released after {took}, {live} live"
        case NodeSpeed():
            return _speed_sentence(record)
        case Waiting():
            live = counted(record.live_nodes, "node")
            return f"waiting for nodes before step {record.step}, {live} live: {record.reason}"
        case PlanTaken():
            return _plan_sentence(record)
        case PolicySwitched():
            return f"step {record.step}: policy {record.policy} makes the plans from now on (before: {record.before})"
        case Recovered():
            return f"recovered: {recovery_sentence(record.recovery)}"
        case CheckpointSaved():
            return f"checkpoint of step {record.step} saved in {duration(record.seconds)}: {record.folder}"
        case CoordinatorRestarted():
            came = f"{counted(record.returned, 'worker')} came back within {duration(record.seconds)}"
            lag = f", {counted(record.lag, 'step')} that its journal had lost" if record.lag else ""
            return f"step {record.step}: the coordinator was started again, {came}{lag}"
        case Restored() if record.from_step == record.to_step:
            return f"went back to the state after step {record.to_step}: {record.reason}"
        case Restored():
            return f"went back from step {record.from_step} to step {record.to_step}: {record.reason}"
        case Note():
            return f"warning: {record.text}" if record.level == "warning" else record.text
        case StepSkipped():
            return f"step {record.step} is not applied: {_not_finite(record)}"
        case StepCommitted() | PlanMeasured() | RunEnded():
            return None


def _speed_sentence(record: NodeSpeed) -> str:
    """Describes a node's new speed in words."""
    if record.speed >= 1:
        return f"step {record.step}: node {record.node} is as fast as the others again, for {record.steps} steps"
    since = f"in the last {record.steps} steps"
    change = "slow" if record.speed < record.before else "faster, and still slow"
    return f"step {record.step}: node {record.node} is {change}: {record.speed:.0%} of the others' speed {since}"


def recovery_sentence(recovery: Recovery) -> str:
    """Describes one loss and what it cost, in one line."""
    many = "s" if len(recovery.lost_nodes) > 1 else ""
    nodes = ", ".join(map(str, recovery.lost_nodes))
    if recovery.microbatches_rerun:
        rerun = f"{recovery.microbatches_rerun} of {recovery.microbatches_per_step} microbatches ran again"
    else:
        rerun = "no microbatch had to run again"
    if recovery.steps_redone:
        return (
            f"{counted(recovery.steps_redone, 'step')} trained again after the loss of node{many} {nodes} in step "
            f"{recovery.step} ({_cause(recovery.cause, recovery.detect_ms)}); the first of them committed "
            f"{duration(recovery.resume_ms / 1e3)} after it"
        )
    if recovery.resume_ms <= 0:  # nobody waited for a commit, or it was made before the coordinator that tells began
        return f"step {recovery.step} goes on without node{many} {nodes} ({_cause(recovery.cause, recovery.detect_ms)})"
    return (
        f"step {recovery.step} committed {duration(recovery.resume_ms / 1e3)} after the loss of node{many} {nodes} "
        f"({_cause(recovery.cause, recovery.detect_ms)}); {rerun}"
    )


def picture(pipelines: Sequence[Sequence[tuple[int, int, int]]]) -> str:
    """Draws pipelines by their stages' layers, for instance "[0-7] 2x[0-3|4-7]"; equal neighbours are counted."""
    shapes = ["[" + "|".join(layer_range(first, end) for _, first, end in stages) + "]" for stages in pipelines]
    runs = [(shape, len(list(equal))) for shape, equal in itertools.groupby(shapes)]
    return " ".join(shape if count == 1 else f"{count}x{shape}" for shape, count in runs)


def layer_range(first: int, end: int) -> str:
    """Formats layers by their first and last, for instance "4-7"."""
    return f"{first}" if end - first == 1 else f"{first}-{end - 1}"


def oversubscription(job: Job, num_cores: int) -> str | None:
    """Warns that the workers of this machine have less than a core each; None where they have enough."""
    workers = job.cluster.nodes * job.cluster.devices_per_node
    if job.cluster.device is not Device.CPU or workers <= num_cores:
        return None
    cores = counted(num_cores, "core")
    return f"{workers} workers share the {cores} of this machine: steps take longer than expected of {workers} machines"


def counted(number: int, noun: str) -> str:
    """Formats a number with its noun: "1 node", "2 batches", "2 recoveries"."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("y") and not noun.endswith("ay"):
        return f"{number} {noun[:-1]}ies"
    return f"{number} {noun}es" if noun.endswith("ch") else f"{number} {noun}s"


def duration(seconds: float) -> str:
    """Formats a time with the digits that matter: "8 ms", "1.25 s", "4:07", "1:02:03"."""
    if seconds < 0.001:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def age(seconds: float) -> str:
    """Formats a time gone by, in its largest unit: "3 minutes"."""
    for limit, noun in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= limit:
            return counted(int(seconds // limit), noun)
    return counted(int(seconds), "second")


def rate(tokens_per_s: float) -> str:
    """Formats tokens a second, for instance "41.2k tok/s"."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if tokens_per_s >= limit:
            return f"{tokens_per_s / limit:.1f}{unit} tok/s"
    return f"{tokens_per_s:.0f} tok/s"


def _not_finite(record: StepSkipped) -> str:
    what = [name for name, value in (("loss", record.loss), ("gradient norm", record.grad_norm)) if value is None]
    return f"its {' and '.join(what)} {'is' if len(what) == 1 else 'are'} not finite"


def _cause(cause: str, detect_ms: float | None) -> str:
    return cause if detect_ms is None else f"{cause}, seen after {duration(detect_ms / 1e3)}"


def _plan_sentence(plan: PlanTaken) -> str:
    if plan.purpose == "finish step":
        return f"plan {plan.generation} finishes step {plan.step}. {plan.reason}"
    if plan.purpose == "warm up":
        return f"plan {plan.generation} for step {plan.step}: {size(plan.transfer_bytes)} to move. {plan.reason}"
    beginning = {
        "start": f" goes on with step {plan.step}" if plan.step > 1 else "",
        "restore": f" restarts at step {plan.step}",
    }.get(plan.purpose, f" from step {plan.step}")
    moved = f", {size(plan.transfer_bytes)} to move" if plan.transfer_bytes else ""
    return (
        f"plan {plan.generation}{beginning}: {picture(plan.pipelines)}, "
        f"{'+'.join(map(str, plan.microbatches))} microbatches, "
        f"{duration(plan.estimated_step_s)} a step expected{moved}. {plan.reason}"
    )
