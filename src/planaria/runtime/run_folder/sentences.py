"""Puts records into sentences, so that progress display, log and CLI say the same in the same words."""

from __future__ import annotations

from planaria.job.sections.cluster import Device
from planaria.job.settings import Job
from planaria.plan.quantities import count, size
from planaria.protocol.messages.records import (
    AnyRecord,
    CheckpointSaved,
    ComputedWrong,
    CoordinatorRestarted,
    DeviceJoined,
    DeviceLost,
    EstimateCorrected,
    Evaluated,
    LinkChanged,
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
    lost_in_words,
)


def sentence(record: AnyRecord) -> str | None:
    """Returns what a record says to a user, in one line; None when it is told otherwise (steps, the end)."""
    match record:
        case NodeJoined():
            where = f" in zone {record.zone}" if record.zone else ""
            label = f" ({record.label})" if record.label else ""
            return f"node {record.node}{label} joined{where}, {count(record.live_nodes, 'node')} live"
        case NodeLost():
            seen = _cause(record.cause, record.detect_ms)
            return f"step {record.step}: node {record.node} lost ({seen}), {count(record.live_nodes, 'node')} live"
        case DeviceLost():
            seen, left = _cause(record.cause, record.detect_ms), count(record.live_devices, "device")
            return f"step {record.step}: device {record.device} of node {record.node} lost ({seen}), {left} left there"
        case DeviceJoined():
            live = count(record.live_devices, "device")
            return f"device {record.device} of node {record.node} is back, {live} there"
        case ComputedWrong():
            return _wrong_sentence(record)
        case NodeLeaving():
            when = f" in {duration(record.grace_s)}" if record.grace_s else ""
            return f"step {record.step}: node {record.node} leaves{when} ({record.cause})"
        case NodeReleased():
            took, live = duration(record.seconds), count(record.live_nodes, "node")
            return f"node {record.node} has handed over its work and is released after {took}, {live} live"
        case NodeSpeed():
            return _speed_sentence(record)
        case Waiting():
            live = count(record.live_nodes, "node")
            return f"waiting for nodes before step {record.step}, {live} live: {record.reason}"
        case PlanTaken():
            return f"{plan_headline(record)}. {record.reason}"
        case PolicySwitched():
            return f"step {record.step}: policy {record.policy} makes the plans from now on (before: {record.before})"
        case Recovered():
            return f"recovered: {recovery_sentence(record.recovery)}"
        case CheckpointSaved():
            return f"checkpoint of step {record.step} saved in {duration(record.seconds)}: {record.folder}"
        case CoordinatorRestarted():
            came = f"{count(record.returned, 'worker')} came back within {duration(record.seconds)}"
            lag = f", {count(record.lag, 'step')} that its journal had lost" if record.lag else ""
            return f"step {record.step}: the coordinator was started again, {came}{lag}"
        case Restored() if record.from_step == record.to_step:
            return f"went back to the state after step {record.to_step}: {record.reason}"
        case Restored():
            return f"went back from step {record.from_step} to step {record.to_step}: {record.reason}"
        case Note():
            return f"warning: {record.text}" if record.level == "warning" else record.text
        case Evaluated():
            return evaluation_sentence(record)
        case StepSkipped():
            return f"step {record.step} is not applied: {_not_finite(record)}"
        case EstimateCorrected() if record.is_reviewed:
            return (
                f"step {record.step}: steps take {duration(record.step_s)}, and {duration(record.before_s)} were "
                f"estimated: links between hosts count as {record.link_slowdown:.2g} times slower than probed, and the "
                f"plan is reviewed"
            )
        case LinkChanged():
            one, other = record.hosts
            return (
                f"step {record.step}: the link between {one} and {other} is {_times(record.factor)} than before: "
                f"{bit_rate(record.bytes_per_s)} from now on, and the plan is reviewed"
            )
        case StepCommitted() | PlanMeasured() | EstimateCorrected() | RunEnded():
            return None


def evaluation_sentence(record: Evaluated) -> str:
    """Describes what an evaluation found, in one line."""
    best = ", the best so far" if record.is_best else ""
    return f"step {record.step} evaluated in {duration(record.duration_s)}: {', '.join(figures_of(record))}{best}"


def figures_of(record: Evaluated) -> list[str]:
    """Formats what an evaluation found, the loss first."""
    figures = ["held-out loss not finite" if record.loss is None else f"held-out loss {record.loss:.4f}"]
    if record.perplexity is not None:
        figures.append(f"perplexity {record.perplexity:.4g}")
    if record.accuracy is not None:
        figures.append(f"accuracy {record.accuracy:.2%}")
    return figures


def _times(factor: float) -> str:
    return f"{factor:.2g} times faster" if factor > 1 else f"{1 / factor:.2g} times slower"


def _speed_sentence(record: NodeSpeed) -> str:
    """Describes a node's new speed in words."""
    if record.speed >= 1:
        return f"step {record.step}: node {record.node} is as fast as the others again, for {record.steps} steps"
    since = f"in the last {record.steps} steps"
    change = "slow" if record.speed < record.before else "faster, and still slow"
    return f"step {record.step}: node {record.node} is {change}: {record.speed:.0%} of the others' speed {since}"


def _wrong_sentence(record: ComputedWrong) -> str:
    """Describes what a node had wrong, and what becomes of its host."""
    layers = f"layer{'s' if len(record.layers) > 1 else ''} {', '.join(map(str, record.layers))}"
    what = {"sum": "sum of the gradients of ", "computation": "forward or backward of "}.get(record.held, "replica of ")
    times = f", {record.times} times by now" if record.times > 1 else ""
    where = f" (host {record.host}{times})" if record.host else ""
    return f"step {record.step}: node {record.node} computed wrong: its {what}{layers} is not that of the others{where}"


def recovery_sentence(recovery: Recovery) -> str:
    """Describes one loss and what it cost, in one line."""
    lost = lost_in_words(recovery.lost_nodes, recovery.lost_devices)
    if recovery.microbatches_rerun:
        rerun = f"{recovery.microbatches_rerun} of {recovery.microbatches_per_step} microbatches ran again"
    else:
        rerun = "no microbatch had to run again"
    if recovery.steps_redone:
        return (
            f"{count(recovery.steps_redone, 'step')} trained again after the loss of {lost} in step "
            f"{recovery.step} ({_cause(recovery.cause, recovery.detect_ms)}); the first of them committed "
            f"{duration(recovery.resume_ms / 1e3)} after it"
        )
    if recovery.resume_ms <= 0:  # nobody waited for a commit, or it was made before the coordinator that tells began
        return f"step {recovery.step} goes on without {lost} ({_cause(recovery.cause, recovery.detect_ms)})"
    return (
        f"step {recovery.step} committed {duration(recovery.resume_ms / 1e3)} after the loss of {lost} "
        f"({_cause(recovery.cause, recovery.detect_ms)}); {rerun}"
    )


def layer_range(first: int, end: int) -> str:
    """Formats layers by their first and last, for instance "4-7"."""
    return f"{first}" if end - first == 1 else f"{first}-{end - 1}"


def oversubscription(job: Job, num_cores: int) -> str | None:
    """Warns that the workers of this machine have less than a core each; None where they have enough."""
    workers = job.cluster.least_nodes * job.cluster.devices_per_node
    if job.cluster.device is not Device.CPU or workers <= num_cores:
        return None
    cores = count(num_cores, "core")
    return f"{workers} workers share the {cores} of this machine: steps take longer than expected of {workers} machines"


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
            return count(int(seconds // limit), noun)
    return count(int(seconds), "second")


def bit_rate(bytes_per_s: float) -> str:
    """Formats the rate of a link, for instance "193 Mbit/s"."""
    bits = 8 * bytes_per_s
    limit, unit = next(((limit, unit) for limit, unit in ((1e9, "G"), (1e6, "M")) if bits >= limit), (1e3, "k"))
    return f"{bits / limit:.3g} {unit}bit/s"


def link_class(name: str) -> str:
    """Names a profile's class of links: "within a node", "between nodes", "across zones"."""
    return "within a node" if name == "within_node" else name.replace("_", " ")


def rate(tokens_per_s: float, unit: str = "tok") -> str:
    """Formats tokens a second, or whatever is counted, for instance "41.2k tok/s"."""
    for limit, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if tokens_per_s >= limit:
            return f"{tokens_per_s / limit:.1f}{prefix} {unit}/s"
    return f"{tokens_per_s:.0f} {unit}/s" if tokens_per_s >= 9.95 else f"{tokens_per_s:.2g} {unit}/s"


def _not_finite(record: StepSkipped) -> str:
    what = [name for name, value in (("loss", record.loss), ("gradient norm", record.grad_norm)) if value is None]
    scaled = f"; the loss is scaled by {record.loss_scale:g} from now on" if record.loss_scale > 1.0 else ""
    return f"its {' and '.join(what)} {'is' if len(what) == 1 else 'are'} not finite{scaled}"


def _cause(cause: str, detect_ms: float | None) -> str:
    return cause if detect_ms is None else f"{cause}, seen after {duration(detect_ms / 1e3)}"


def plan_headline(plan: PlanTaken) -> str:
    """Describes a plan by its figures, without its pipelines and its reason."""
    if plan.purpose == "finish step":
        return f"plan {plan.generation} finishes step {plan.step}"
    moved = f"{size(plan.transfer_bytes)} to move"
    if plan.purpose == "warm up":
        return f"plan {plan.generation} for step {plan.step}: {moved}"
    beginning = {
        "start": f" goes on with step {plan.step}" if plan.step > 1 else "",
        "restore": f" restarts at step {plan.step}",
    }.get(plan.purpose, f" from step {plan.step}")
    expected = f"{duration(plan.estimated_step_s)} a step expected"
    return f"plan {plan.generation}{beginning}: {expected}{f', {moved}' if plan.transfer_bytes else ''}"
