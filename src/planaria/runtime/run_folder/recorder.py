"""Writes the run folder's events.jsonl, metrics.jsonl and summary.json from records.

The recorder never decides anything, and holds nothing that grows faster than one number a step.
"""

from __future__ import annotations

import json
import logging
import math
import os
import statistics
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from planaria.job.parse import job_fingerprint
from planaria.job.settings import Job
from planaria.protocol.messages.records import (
    AnyRecord,
    CheckpointSaved,
    Evaluated,
    NodeJoined,
    NodeLost,
    PolicySwitched,
    Record,
    Recovered,
    Recovery,
    Restored,
    RunEnded,
    StepCommitted,
    StepSkipped,
)
from planaria.protocol.planning.failure_rate import Watch, Watched
from planaria.protocol.step.time_accounting import TimeAccount
from planaria.runtime.run_folder.lines import Lines
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.run_folder.step_blocks import BlockWriter, passages
from planaria.runtime.run_folder.step_lines import parts_of, parts_of_file

log = logging.getLogger(__name__)


class _Time(msgspec.Struct):
    time: float


class Recorder:
    """An observer that writes files. Call it with each record, and `finish` once, before or after `RunEnded`.

    In a folder that holds a run already, it appends, and the summary counts both parts of the run.

    Attributes:
        folder: the run's folder.
    """

    def __init__(self, folder: RunFolder, job: Job) -> None:
        """Opens the files.

        Args:
            folder: the run's folder.
            job: the job; its name and fingerprint go into the summary.
        """
        self.folder = folder
        self._job = job
        self._started_s: float | None = None
        self._ended: tuple[RunEnded, float] | None = None
        self._skipped = 0
        self._duplicated = 0
        self._skipped_steps: set[int] = set()
        self._dropped: dict[int, int] = {}
        self._last_step: StepCommitted | None = None
        self._evaluated: dict[int, Evaluated] = {}
        self._live_nodes: int | None = None
        self._checkpoint: str | None = None
        self._cost = 0.0
        self._recoveries: list[Recovery] = []
        self._spent = TimeAccount()
        self._watch = Watch()
        self._step_s = array("d")
        self._tokens_per_s = array("d")
        self._weights_sha256: str | None = None
        self._extra: dict[str, object] = {}
        self._policy = job.resilience.policy.value
        self._switches: list[PolicySwitched] = []
        for record, time_s in read_events(folder.events):
            self._note(record, time_s)
        self._ended = None
        self._events = Lines(folder.events)
        self._metrics = Lines(folder.metrics)
        self._blocks = BlockWriter(folder.step_blocks, folder.events.stat().st_size)

    @property
    def recoveries(self) -> tuple[Recovery, ...]:
        """The recoveries of the whole run, in order."""
        return tuple(self._recoveries)

    @property
    def watched(self) -> Watched:
        """What the whole run has seen of losses of nodes by now."""
        return self._watch.watched

    @property
    def cost(self) -> float:
        """Dollars that the whole run has cost by now."""
        return self._cost

    def __call__(self, record: AnyRecord, time_s: float) -> None:
        """Appends a record.

        Args:
            record: what happened.
            time_s: when, in seconds since 1970 (UTC).
        """
        line = b'{"time":%.6f,%b\n' % (time_s, msgspec.json.encode(record)[1:])
        self._events.write(line)
        self._note(record, time_s)
        if isinstance(record, StepCommitted | StepSkipped):
            self._blocks.wrote_step(record, time_s, len(line))
            self._metrics.write(_metrics_line(record))
            return
        self._blocks.wrote(len(line))
        if isinstance(record, Evaluated):
            self._metrics.write(_evaluation_line(record))
        elif isinstance(record, RunEnded):
            self._write_summary()

    def finish(self, *, weights_sha256: str | None = None, extra: Mapping[str, object] | None = None) -> None:
        """Writes what only the end of a run knows.

        Args:
            weights_sha256: of the final weights.
            extra: further entries of the summary; values that JSON can hold.
        """
        self._weights_sha256 = weights_sha256
        self._extra.update(extra or {})
        if self._ended is not None:
            self._write_summary()

    def close(self) -> None:
        """Closes the files. A second call does nothing."""
        self._events.close()
        self._metrics.close()
        self._blocks.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _note(self, record: Record, time_s: float) -> None:
        """Notes what the summary needs of a record."""
        self._spent.note(record, time_s)
        self._watch.note(record, time_s)
        if self._started_s is None:
            self._started_s = time_s
        match record:
            case StepCommitted():
                self._dropped[record.step] = len(record.dropped)
                self._last_step = record
                self._live_nodes = record.live_nodes
                self._cost = max(self._cost, record.cost)
                self._step_s.append(record.duration_s)
                self._tokens_per_s.append(record.tokens_per_s)
            case StepSkipped():
                self._dropped[record.step] = len(record.dropped)
                self._skipped_steps.add(record.step)
            case Evaluated():
                self._evaluated[record.step] = record
            case Restored():
                self._evaluated = {s: found for s, found in self._evaluated.items() if s <= record.to_step}
                self._skipped_steps = {step for step in self._skipped_steps if step <= record.to_step}
                self._dropped = {step: num for step, num in self._dropped.items() if step <= record.to_step}
            case NodeLost() | NodeJoined():
                self._live_nodes = record.live_nodes
            case PolicySwitched():
                self._policy = record.policy
                self._switches.append(record)
            case Recovered():
                self._recoveries.append(record.recovery)
            case CheckpointSaved():
                self._checkpoint = record.folder
            case RunEnded():
                self._ended = record, time_s
                self._cost = max(self._cost, record.cost)
                self._skipped += record.skipped_microbatches
                self._duplicated += record.duplicated_microbatches
            case _:
                pass

    def evaluated_up_to(self, step: int) -> tuple[Evaluated, ...]:
        """Returns the evaluations of the steps up to this one, in order."""
        return tuple(self._evaluated[done] for done in sorted(self._evaluated) if done <= step)

    def _evaluation_summary(self) -> dict[str, object] | None:
        """Returns the last evaluation and the best one; None where there was none."""
        if not self._evaluated:
            return None
        last = self._evaluated[max(self._evaluated)]
        best = [record for record in self.evaluated_up_to(last.step) if record.is_best]
        metric = self._job.eval.metric.value
        return {
            "last": _figures(last),
            "best": _figures(best[-1]) if best else None,
            "metric": metric,
            "evaluations": len(self._evaluated),
            "seconds": round(sum(record.duration_s for record in self._evaluated.values()), 6),
        }

    def _write_summary(self) -> None:
        assert self._ended is not None
        assert self._started_s is not None
        ended, ended_s = self._ended
        dropped_samples = sum(self._dropped.values()) * self._job.train.microbatch
        samples = ended.steps * self._job.train.global_batch - dropped_samples
        summary: dict[str, object] = {
            "status": ended.status.value,
            "name": self._job.run.name or self.folder.path.name,
            "steps": ended.steps,
            "final_loss": finite(self._last_step.loss) if self._last_step else None,
            "evaluation": self._evaluation_summary(),
            "weights_sha256": self._weights_sha256,
            "skipped_microbatches": self._skipped,
            "duplicated_microbatches": self._duplicated,
            "skipped_steps": len(self._skipped_steps),
            "steps_redone": self._spent.steps_redone,
            "time_s": {
                cause: round(seconds, 6) for cause, seconds in msgspec.structs.asdict(self._spent.split).items()
            },
            "dropped_microbatches": sum(self._dropped.values()),
            "dropped_samples": dropped_samples,
            "policy": self._policy,
            "policy_switches": [{"step": s.step, "policy": s.policy, "before": s.before} for s in self._switches],
            "recoveries": msgspec.to_builtins(self._recoveries),
            "started": _timestamp(self._started_s),
            "ended": _timestamp(ended_s),
            "step_time_median_s": _median(self._step_s),
            "tokens_per_s": _median(self._tokens_per_s),
            "live_nodes": self._live_nodes,
            "cost": round(self._cost, 4) if self._cost else None,
            "samples_per_dollar": samples / self._cost if self._cost else None,
            "message": ended.message,
            "checkpoint": self._checkpoint,
            "job_fingerprint": job_fingerprint(self._job),
            **self._extra,
        }
        try:
            write_atomically(self.folder.summary, json.dumps(summary, indent=2).encode() + b"\n")
        except OSError as error:  # what it tells is in the events, or on the screen; the run itself is whole
            log.warning("%s could not be written: %s", self.folder.summary, error.strerror or error)


def read_events(path: Path) -> Iterator[tuple[AnyRecord, float]]:
    """Yields the records of an events.jsonl with their times; a last line cut short by a crash is left out."""
    if not path.exists():
        return
    decode = msgspec.json.Decoder(AnyRecord).decode
    decode_time = msgspec.json.Decoder(_Time).decode
    with path.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                yield decode(line), decode_time(line).time


def told_but_steps(folder: RunFolder) -> Iterator[AnyRecord]:
    """Yields the records of a run; of many steps that follow each other, few: the last one, and the last that was
    applied, are among them."""
    decode = msgspec.json.Decoder(AnyRecord).decode
    read_bytes = 0
    for lines, block, end in passages(folder.events, folder.step_blocks):
        yield from _without_most_steps(parts_of(lines) if block is None else [(lines, True)], decode)
        read_bytes = end
    if folder.events.exists():
        yield from _without_most_steps(parts_of_file(folder.events, read_bytes), decode)


def _without_most_steps(
    parts: Iterable[tuple[bytes, bool]], decode: Callable[[bytes], AnyRecord]
) -> Iterator[AnyRecord]:
    for part, are_steps in parts:
        if not are_steps:
            yield decode(part)
            continue
        last = part.rfind(b"\n", 0, -1) + 1
        applied = part.rfind(b"\n", 0, max(0, part.rfind(b'"event":"step_committed"'))) + 1
        yield from (decode(part[at : part.index(b"\n", at)]) for at in sorted({applied, last}))


def read_drops(path: Path) -> dict[int, tuple[int, ...]]:
    """Returns the microbatches that a run left out, by step, from its events.jsonl; of a step done again, the last."""
    drops: dict[int, tuple[int, ...]] = {}
    for record, _ in read_events(path):
        if isinstance(record, StepCommitted | StepSkipped):
            drops[record.step] = record.dropped
    return {step: dropped for step, dropped in drops.items() if dropped}


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file that is either whole or as it was before."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _metrics_line(step: StepCommitted | StepSkipped) -> bytes:
    line: dict[str, object] = {
        "step": step.step,
        "loss": finite(step.loss),
        "grad_norm": finite(step.grad_norm),
        "learning_rate": step.learning_rate,
        "tokens_per_s": round(step.tokens_per_s, 3),
        "step_s": round(step.duration_s, 6),
        "live_nodes": step.live_nodes,
        "generation": step.generation,
    }
    if step.loss_scale != 1.0:
        line["loss_scale"] = step.loss_scale
    if step.dropped:
        line["dropped"] = len(step.dropped)
    if isinstance(step, StepCommitted) and step.dropped:
        line["scale"] = step.scale
    if isinstance(step, StepSkipped):
        line["applied"] = False
    return json.dumps(line).encode() + b"\n"


def _figures(record: Evaluated) -> dict[str, object]:
    return {
        "step": record.step,
        "loss": record.loss,
        "perplexity": record.perplexity,
        "accuracy": record.accuracy,
    }


def _evaluation_line(record: Evaluated) -> bytes:
    line: dict[str, object] = {"step": record.step}
    line |= {f"eval_{name}": value for name, value in _figures(record).items() if name != "step"}
    return json.dumps({**line, "eval_s": round(record.duration_s, 6)}).encode() + b"\n"


def finite(value: float | None) -> float | None:
    """Replaces NaN and infinity, which JSON does not have, by null."""
    return value if value is not None and math.isfinite(value) else None


def _median(values: array[float]) -> float | None:
    return round(statistics.median(values), 6) if values else None


def _timestamp(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="milliseconds")
