"""The cells of a schedule's picture: what a worker does when, with the pieces of one backward joined."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from planaria.plan.plan import Plan, WorkerId
from planaria.plan.program.instructions import Instruction, Op
from planaria.plan.quantities import ranges
from planaria.planner.reroute.plans import shares
from planaria.runtime.run_folder.tables import by_lanes, num_lanes


class CellTimeline(Protocol):
    """The timeline that is drawn: see `planaria.estimate.step_time.Timeline`, which this package does not import."""

    @property
    def step_time_s(self) -> float: ...

    @property
    def spans(self) -> Mapping[WorkerId, Sequence[tuple[Instruction, float, float]]]: ...


class CellKind(enum.StrEnum):
    FORWARD = "forward"
    BACKWARD = "backward"
    WEIGHT = "weight gradients"
    """The weights' half of a split backward; the other half is drawn as a backward."""
    SHADOW = "shadow"
    """A forward or backward of what the worker shadows, or of what it audits."""
    SYNC = "sync"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One box of the picture: the microbatch of a forward or backward, or the group of a sync; times in seconds.

    `layers`: first layer and end of what is run.
    """

    kind: CellKind
    number: int
    start_s: float
    end_s: float
    layers: tuple[int, int]


_KINDS = {
    Op.FORWARD: CellKind.FORWARD,
    Op.BACKWARD: CellKind.BACKWARD,
    Op.BACKWARD_INPUT: CellKind.BACKWARD,
    Op.BACKWARD_WEIGHT: CellKind.WEIGHT,
    Op.SHADOW_FORWARD: CellKind.SHADOW,
    Op.SHADOW_BACKWARD: CellKind.SHADOW,
    Op.AUDIT: CellKind.SHADOW,
    Op.SYNC: CellKind.SYNC,
}


def cells(spans: Sequence[tuple[Instruction, float, float]]) -> tuple[Cell, ...]:
    """Returns a worker's cells, in program order."""
    result: list[Cell] = []
    joined: dict[tuple[CellKind, int, int, int], int] = {}
    for instruction, start, end in spans:
        kind = _KINDS.get(instruction.op)
        if kind is None:
            continue
        number = instruction.group if kind is CellKind.SYNC else instruction.microbatch
        layers = instruction.first_layer, instruction.end_layer
        cell = Cell(kind=kind, number=number, start_s=start, end_s=end, layers=layers)
        if kind in (CellKind.BACKWARD, CellKind.WEIGHT):
            # A backward cut into layers goes from the top down: its pieces touch in layers and in time.
            at = joined.get((kind, instruction.born, number, instruction.end_layer))
            if at is not None and result[at].end_s == start:
                whole = result[at]
                result[at] = replace(whole, end_s=end, layers=(instruction.first_layer, whole.layers[1]))
            else:
                at = len(result)
                result.append(cell)
            joined[kind, instruction.born, number, instruction.first_layer] = at
        else:
            result.append(cell)
    return tuple(result)


def label(plan: Plan, worker: WorkerId) -> str:
    """Returns a row's name: the worker, its node where that is another number, and its layers."""
    owned = plan.layers_of.get(worker, ())
    layers = ",".join(str(first) if first + 1 == end else f"{first}-{end - 1}" for first, end in ranges(owned))
    node = plan.node_of(worker)
    where = f"node {node}" if plan.devices_per_node == 1 else f"node {node} device {worker % plan.devices_per_node}"
    return f"{where} layers {layers}" if len(owned) != 1 else f"{where} layer {layers}"


def rows(plan: Plan) -> list[tuple[int | None, WorkerId]]:
    """Returns workers in the order of pictures: by pipeline, with its number before its first worker. Those on several
    devices of the same nodes are one, as in tables of plans."""
    result: list[tuple[int | None, WorkerId]] = []
    seen: set[WorkerId] = set()
    lanes = _lanes(plan)
    for number, at in enumerate(range(0, len(plan.pipelines), lanes)):
        heading: int | None = number
        for mates in zip(*(pipeline.workers for pipeline in plan.pipelines[at : at + lanes]), strict=True):
            for worker in mates:
                if worker not in seen:
                    seen.add(worker)
                    result.append((heading, worker))
                    heading = None
    return result


def microbatches(plan: Plan) -> list[int]:
    """Returns how many microbatches each pipeline of a picture runs."""
    return by_lanes(shares(plan), _lanes(plan))


def _lanes(plan: Plan) -> int:
    return num_lanes([pipeline.key for pipeline in plan.pipelines], plan.devices_per_node)


def tick_s(step_time_s: float, at_most: int) -> float:
    """Returns the distance of an axis's marks: 1, 2 or 5 times a power of ten seconds, at most `at_most` of them."""
    size = 1e-9
    while True:
        for factor in (1, 2, 5):
            if step_time_s <= size * factor * at_most:
                return size * factor
        size *= 10


def milliseconds(time_s: float) -> str:
    """Returns milliseconds for an axis: "12.5"."""
    return f"{time_s * 1e3:.6g}"
