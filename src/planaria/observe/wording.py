"""Records as sentences. Progress display, log and CLI say the same thing in the same words."""

from __future__ import annotations

from collections.abc import Sequence

from planaria.protocol.records import (
    AnyRecord,
    CheckpointSaved,
    NodeJoined,
    NodeLost,
    Note,
    PlanTaken,
    Recovered,
    Recovery,
    Restored,
    RunEnded,
    StepCommitted,
)


def sentence(record: AnyRecord) -> str | None:
    """What a record says to a user, in one line; None when it is told otherwise (steps, the end)."""
    match record:
        case NodeJoined():
            return f"node {record.node} joined, {counted(record.live_nodes, 'node')} live"
        case NodeLost():
            return (
                f"node {record.node} lost at step {record.step} "
                f"({_cause(record.cause, record.detect_ms)}), {counted(record.live_nodes, 'node')} live"
            )
        case PlanTaken():
            return _plan_sentence(record)
        case Recovered():
            return recovery_sentence(record.recovery)
        case CheckpointSaved():
            return f"checkpoint of step {record.step} saved in {duration(record.seconds)}: {record.folder}"
        case Restored():
            return f"went back from step {record.from_step} to step {record.to_step}: {record.reason}"
        case Note():
            return f"warning: {record.text}" if record.level == "warning" else record.text
        case StepCommitted() | RunEnded():
            return None


def recovery_sentence(recovery: Recovery) -> str:
    """One loss and what it cost, in one line."""
    nodes = ", ".join(map(str, recovery.lost_nodes))
    many = "s" if len(recovery.lost_nodes) > 1 else ""
    if recovery.microbatches_rerun:
        rerun = f"{recovery.microbatches_rerun} of {recovery.microbatches_per_step} microbatches run again"
    else:
        rerun = "no microbatch had to run again"
    return (
        f"node{many} {nodes} lost at step {recovery.step} ({_cause(recovery.cause, recovery.detect_ms)}): "
        f"{rerun}; step committed {duration(recovery.resume_ms / 1e3)} later"
    )


def picture(pipelines: Sequence[Sequence[tuple[int, int, int]]]) -> str:
    """Pipelines by their stages' layers, for instance "[0-3|4-7] [0-7]"."""
    return " ".join("[" + "|".join(_layers(first, end) for _, first, end in stages) + "]" for stages in pipelines)


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 node", "2 batches", "2 recoveries"."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("y"):
        return f"{number} {noun[:-1]}ies"
    return f"{number} {noun}es" if noun.endswith("ch") else f"{number} {noun}s"


def duration(seconds: float) -> str:
    """A time with the digits that matter: "8 ms", "1.25 s", "4:07", "1:02:03"."""
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


def rate(tokens_per_s: float) -> str:
    """Tokens a second, for instance "41.2k tok/s"."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if tokens_per_s >= limit:
            return f"{tokens_per_s / limit:.1f}{unit} tok/s"
    return f"{tokens_per_s:.0f} tok/s"


def _cause(cause: str, detect_ms: float | None) -> str:
    return cause if detect_ms is None else f"{cause}, {duration(detect_ms / 1e3)}"


def _layers(first: int, end: int) -> str:
    return f"{first}" if end - first == 1 else f"{first}-{end - 1}"


def _plan_sentence(plan: PlanTaken) -> str:
    moved = f", {size(plan.transfer_bytes)} to move" if plan.transfer_bytes else ""
    spread = "+".join(map(str, plan.microbatches))
    return (
        f"plan {plan.generation} ({plan.purpose}): {picture(plan.pipelines)}, {spread} microbatches, "
        f"{duration(plan.estimated_step_s)} a step expected{moved}. {plan.reason}"
    )


def size(size_bytes: int) -> str:
    """Bytes, for instance "1.5 MB" (10**6 bytes)."""
    for limit, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size_bytes >= limit:
            return f"{size_bytes / limit:.1f} {unit}"
    return f"{size_bytes} B"
