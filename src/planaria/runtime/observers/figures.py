"""What views show of a record: figures by name and step, and events in words; and a job as a table of values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from planaria.job.settings import Job
from planaria.protocol.messages.records import (
    AnyRecord,
    ComputedWrong,
    CoordinatorRestarted,
    DeviceJoined,
    DeviceLost,
    EstimateCorrected,
    Evaluated,
    NodeJoined,
    NodeLeaving,
    NodeLost,
    NodeReleased,
    Note,
    PlanTaken,
    PolicySwitched,
    Recovered,
    Restored,
    RunEnded,
    StepCommitted,
    StepSkipped,
    Waiting,
)
from planaria.runtime.run_folder.sentences import sentence

OF_A_STEP = ("finish step", "warm up")
"""Purposes of plans that say nothing of the steps to come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a record adds to the curves.

    Attributes:
        step: at which.
        values: by name, as "train/loss".
        event: in words; None: no event.
        redone_from: the steps from this one on are trained again; None: none are.
    """

    step: int
    values: Mapping[str, float]
    event: str | None = None
    redone_from: int | None = None


class FigureReader:
    """Reads figures from records, one after the other.

    Args:
        step: the last step of before.
    """

    def __init__(self, step: int = 0) -> None:
        self._step = step
        self._estimated_step_s: float | None = None

    def read(self, record: AnyRecord) -> Figures | None:
        """Returns what a record adds to the curves; None: nothing."""
        match record:
            case StepCommitted() | StepSkipped():
                self._step = record.step
                event = sentence(record)
                return Figures(step=record.step, values=dict(_step_values(record, self._estimated_step_s)), event=event)
            case Evaluated():
                found = {"loss": record.loss, "perplexity": record.perplexity, "accuracy": record.accuracy}
                values = {f"eval/{name}": value for name, value in found.items() if value is not None}
                return Figures(step=record.step, values=values)
            case PlanTaken() if record.purpose not in OF_A_STEP:
                self._estimated_step_s = record.estimated_step_s
                return self._event(record)
            case EstimateCorrected():
                self._estimated_step_s = record.step_s
                return None
            case Recovered(recovery=recovery):
                values = {"cluster/recovery_s": recovery.resume_ms / 1e3} if recovery.resume_ms > 0 else {}
                return Figures(step=recovery.step, values=values, event=sentence(record))
            case Restored():
                self._step = record.to_step
                again = record.to_step + 1
                return Figures(step=record.to_step, values={}, event=sentence(record), redone_from=again)
            case RunEnded():
                return Figures(step=record.steps, values={}, event=ending(record))
            case NodeJoined() | NodeLost() | NodeLeaving() | NodeReleased() | Waiting() | PolicySwitched():
                return self._event(record)
            case DeviceLost() | DeviceJoined():
                return self._event(record)
            case ComputedWrong() | CoordinatorRestarted() | Note(level="warning"):
                return self._event(record)
            case _:
                return None

    def _event(self, record: AnyRecord) -> Figures:
        return Figures(step=self._step, values={}, event=sentence(record))


def _step_values(record: StepCommitted | StepSkipped, estimated_step_s: float | None) -> Mapping[str, float]:
    found = {
        "train/loss": record.loss,
        "train/grad_norm": record.grad_norm,
        "train/learning_rate": record.learning_rate,
        "train/loss_scale": record.loss_scale if record.loss_scale != 1.0 else None,
        "train/dropped_microbatches": record.num_dropped or None,
        "throughput/tokens_per_s": record.tokens_per_s,
        "throughput/step_s": record.duration_s,
        "cluster/live_nodes": record.live_nodes,
    }
    if estimated_step_s:
        found["throughput/estimated_step_s"] = estimated_step_s
        found["throughput/estimated_tokens_per_s"] = record.tokens_per_s * record.duration_s / estimated_step_s
    return {name: float(value) for name, value in found.items() if value is not None}


def ending(record: RunEnded) -> str:
    """Describes the end of a run in one line."""
    said = record.message.strip().splitlines()
    return f"{record.status.value} after step {record.steps}{f': {said[0]}' if said else ''}"


def hyperparameters(job: Job) -> dict[str, bool | int | float | str]:
    """Returns a job's values by their full names, as "train.steps"; lists as JSON. [observe] is left out."""
    return dict(_flat("", nested(job)))


def nested(job: Job) -> dict[str, object]:
    """Returns a job as tables within a table, without [observe]."""
    table: dict[str, object] = msgspec.to_builtins(job)
    table.pop("observe")
    return table


def _flat(place: str, table: Mapping[str, object]) -> list[tuple[str, bool | int | float | str]]:
    values: list[tuple[str, bool | int | float | str]] = []
    for name, value in table.items():
        match value:
            case dict():
                values += _flat(f"{place}{name}.", value)
            case bool() | int() | float() | str():
                values.append((f"{place}{name}", value))
            case None:
                pass
            case _:
                values.append((f"{place}{name}", msgspec.json.encode(value).decode()))
    return values
