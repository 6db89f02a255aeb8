"""Steps as they ran: what every worker did when, on one time axis, in the format that Perfetto and Chrome read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from planaria.job.errors import UserError
from planaria.job.parse import job_from_json
from planaria.protocol.messages.records import Recovered
from planaria.runtime.run_folder.recorder import read_events
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.run_folder.sentences import sentence
from planaria.runtime.worker.instruction_trace import Entry, read_trace

_STEPS = 0
"""Number of the row of steps; a node's rows are numbered by the node, from 1 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedSteps:
    """What workers did in some steps.

    Attributes:
        workers: worker -> its instructions, in the order in which they ran.
        recoveries: step -> what is told of the losses in it.
        devices_per_node: workers of a node.
    """

    workers: Mapping[int, tuple[Entry, ...]]
    recoveries: Mapping[int, tuple[str, ...]]
    devices_per_node: int


def trace_files(folder: RunFolder) -> dict[int, Path]:
    """Returns the files in which workers of a run have written what they did, by worker, ascending."""
    named = [(re.fullmatch(r"trace-(\d+)", file.stem), file) for file in folder.logs.glob("trace-*.jsonl")]
    return dict(sorted((int(number[1]), file) for number, file in named if number is not None))


def traced_steps(folder: RunFolder, first: int, last: int) -> TracedSteps:
    """Reads what the workers of a run have written of the steps from `first` to `last`.

    Raises:
        UserError: they have written nothing, or nothing of these steps.
    """
    job = job_from_json(folder.job.read_bytes())
    workers: dict[int, tuple[Entry, ...]] = {}
    files = trace_files(folder)
    for worker, file in files.items():
        if entries := tuple(_last_of_each(read_trace(file), first, last)):
            workers[worker] = entries
    if not files:
        raise UserError(
            f"the workers of {folder.path} have not written what they did. Set observe.instructions = true in the job, "
            "and train."
        )
    if not workers:
        raise UserError(
            f"the workers of {folder.path} have written nothing of the steps {first} to {last}. Give others."
        )
    told: dict[int, tuple[str, ...]] = {}
    for record, _ in read_events(folder.events):
        if isinstance(record, Recovered) and first <= record.recovery.step <= last:
            told[record.recovery.step] = (*told.get(record.recovery.step, ()), sentence(record) or "")
    per_node = job.cluster.devices_per_node
    return TracedSteps(workers=workers, recoveries=told, devices_per_node=per_node)


def write_step_trace(traced: TracedSteps, target: Path) -> None:
    """Writes the file. Raises UserError: it cannot be written."""
    try:
        with target.open("w") as file:
            file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
            file.write(",\n".join(json.dumps(event) for event in _events(traced)))
            file.write("\n]}\n")
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror}. Give another path.") from None


def _last_of_each(entries: Iterable[Entry], first: int, last: int) -> list[Entry]:
    """Returns the entries of these steps; of a step that was trained again, those of the last time."""
    kept: list[Entry] = []
    for entry in entries:
        if kept and entry.step < kept[-1].step:
            kept = [one for one in kept if one.step < entry.step]
        if first <= entry.step <= last:
            kept.append(entry)
    return kept


def _events(traced: TracedSteps) -> Iterator[dict[str, object]]:
    began_s = min(entries[0].began_s for entries in traced.workers.values())
    yield _named("process", _STEPS, _STEPS, "steps")
    for worker in traced.workers:
        node = worker // traced.devices_per_node
        if worker % traced.devices_per_node == 0 or node * traced.devices_per_node not in traced.workers:
            yield _named("process", node + 1, worker, f"node {node}")
        yield _named("thread", node + 1, worker, f"worker {worker}")
    for step, (start_s, end_s) in sorted(_spans(traced).items()):
        recoveries = traced.recoveries.get(step, ())
        name = f"step {step}{' (nodes were lost)' if recoveries else ''}"
        yield _slice(name, "step", _STEPS, _STEPS, start_s - began_s, end_s - began_s) | {
            "args": {"step": step, "recoveries": "; ".join(recoveries)}
        }
    for worker, entries in traced.workers.items():
        for entry in entries:
            name = entry.op if entry.microbatch < 0 else f"{entry.op} {entry.microbatch}"
            place = worker // traced.devices_per_node + 1, worker
            yield _slice(name, entry.op, *place, entry.began_s - began_s, entry.ended_s - began_s) | {
                "args": {
                    "step": entry.step,
                    "microbatch": entry.microbatch,
                    "route of plan": entry.born,
                    "first layer": entry.first_layer,
                }
            }


def _spans(traced: TracedSteps) -> dict[int, tuple[float, float]]:
    """Returns when each step began and ended, on any worker."""
    spans: dict[int, tuple[float, float]] = {}
    for entries in traced.workers.values():
        for entry in entries:
            start_s, end_s = spans.get(entry.step, (entry.began_s, entry.ended_s))
            spans[entry.step] = min(start_s, entry.began_s), max(end_s, entry.ended_s)
    return spans


def _named(what: str, process: int, thread: int, name: str) -> dict[str, object]:
    return {"ph": "M", "name": f"{what}_name", "pid": process, "tid": thread, "args": {"name": name}}


def _slice(name: str, category: str, process: int, thread: int, start_s: float, end_s: float) -> dict[str, object]:
    times = {"ts": round(start_s * 1e6, 3), "dur": round((end_s - start_s) * 1e6, 3)}
    return {"ph": "X", "name": name, "cat": category, "pid": process, "tid": thread, **times}
