"""Warm-ups: steps of the plan in force beside which the workers of the next plan get their state, as shadows.

What a step leaves of the links may be less than all of the state takes; nobody votes before state that the step's plan
moves is there. So as much moves beside one step as there is room for, whole layers that are shadows from then on, and
the rest beside the next ones. Where a layer is too much for its sender, it comes in parts from all who hold it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec

from planaria.plan.plan import NodeId, Plan, Stage, Transfer, WorkerId, runs_of
from planaria.plan.thresholds import WORTH_SPLITTING_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The room for state on the links of nodes beside a step.

    Attributes:
        seconds: for which a node may send, and get, state.
        link_s: that a transfer keeps the link busy.
    """

    seconds: Callable[[NodeId], float]
    link_s: Callable[[Transfer], float]


def warm_up(plan: Plan, target: Plan, generation: int, room: Room | None = None) -> Plan:
    """Returns `plan` with what the workers of `target` lack as shadows, and `target`'s transfers.

    Shadows of `plan` that send, and have no place in `target`, stay in it until they have.

    Args:
        plan: in force, all of its workers live.
        target: for the steps after; its transfers bring what its workers lack.
        generation: the new plan's generation.
        room: for the transfers; those that it is too small for are left out, and so are the layers that need them.
            None: all move beside this step.
    """
    own = {worker: set(plan.layers_of.get(worker, ())) for worker in {*plan.workers, *target.workers}}
    lacking = {worker: set(layers) - own[worker] for worker, layers in target.layers_of.items()}
    senders = {move.source for move in target.transfers}
    staying = [shadow for shadow in plan.shadows if plan.redundancy is not None or shadow.worker in senders]
    for shadow in (*staying, *target.shadows):
        lacking.setdefault(shadow.worker, set()).update(set(shadow.layers) - own[shadow.worker])
    transfers = target.transfers
    if room is not None:
        lacking, transfers = _fitting(plan, lacking, transfers, room)
    devices = plan.devices_of | target.devices_of
    shadows: list[Stage] = []
    for worker, layers in sorted(lacking.items()):
        shadows += runs_of(worker, layers, devices[worker])
    return msgspec.structs.replace(
        plan,
        generation=generation,
        shadows=tuple(shadows),
        transfers=transfers,
        sync_epochs=(generation,) * len(plan.groups),
    )


_Ways = dict[tuple[bool, NodeId], float]
"""Seconds for which each way out of a node (True) or into it is taken."""


@dataclass(slots=True)
class _Links:
    """Ways out of and into nodes, and for how long each is taken."""

    plan: Plan
    room: Room
    taken_s: _Ways = field(default_factory=dict)

    def take(self, moves: list[Transfer]) -> list[Transfer]:
        """Takes these transfers, or the same from more senders, if they fit or nothing else is on their ways.

        Returns:
            What was taken; nothing if it does not fit.
        """
        if self._fits(needed := self._needed(moves)):
            return self._taken(moves, needed)
        spread = [part for move in moves for part in self._spread(move)]
        needed = self._needed(spread)
        is_first = self.taken_s.keys().isdisjoint(needed)
        return self._taken(spread, needed) if is_first or self._fits(needed) else []

    def _spread(self, move: Transfer) -> list[Transfer]:
        """Returns the transfer in equal parts from all nodes that hold its group, as far as they are worth it."""
        target, size = self.plan.node_of(move.target), self.plan.groups[move.group].size_bytes
        holders = {self.plan.node_of(move.source): move.source}
        for worker, groups in sorted(self.plan.groups_of.items()):
            if move.group in groups:
                holders.setdefault(self.plan.node_of(worker), worker)
        count = min(len(holders), size // WORTH_SPLITTING_BYTES)
        if move.part is not None or target in holders or count < 2:
            return [move]
        idle_first = sorted(holders, key=lambda node: (self.taken_s.get((True, node), 0.0), node))
        cuts = [size * at // count for at in range(count + 1)]
        return [
            Transfer(group=move.group, source=holders[node], target=move.target, part=part)
            for node, part in zip(idle_first, pairwise(cuts), strict=False)
        ]

    def _needed(self, moves: list[Transfer]) -> _Ways:
        needed: _Ways = {}
        for move in moves:
            ends = self.plan.node_of(move.source), self.plan.node_of(move.target)
            for way in ((True, ends[0]), (False, ends[1])) if ends[0] != ends[1] else ():
                needed[way] = needed.get(way, 0.0) + self.room.link_s(move)
        return needed

    def _fits(self, needed: _Ways) -> bool:
        return all(self.taken_s.get(way, 0.0) + seconds <= self.room.seconds(way[1]) for way, seconds in needed.items())

    def _taken(self, moves: list[Transfer], needed: _Ways) -> list[Transfer]:
        self.taken_s.update({way: self.taken_s.get(way, 0.0) + seconds for way, seconds in needed.items()})
        return moves


def _fitting(
    plan: Plan, lacking: Mapping[WorkerId, set[int]], transfers: tuple[Transfer, ...], room: Room
) -> tuple[dict[WorkerId, set[int]], tuple[Transfer, ...]]:
    """Returns the layers that workers can hold after the step, and the transfers of these."""
    missing: dict[tuple[WorkerId, int], list[Transfer]] = {}
    for move in transfers:
        missing.setdefault((move.target, move.group), []).append(move)
    groups_of: dict[int, list[int]] = {}
    for number, group in enumerate(plan.groups):
        for layer in group.layers:
            groups_of.setdefault(layer, []).append(number)
    links = _Links(plan, room)
    moved: list[Transfer] = []
    held: dict[WorkerId, set[int]] = {}
    for worker, layers in sorted(lacking.items()):
        for layer in sorted(layers):
            needed = [(worker, group) for group in groups_of.get(layer, ()) if (worker, group) in missing]
            moves = [move for need in needed for move in missing[need]]
            taken = links.take(moves)
            if taken or not moves:
                held.setdefault(worker, set()).add(layer)
                moved += taken
                for need in needed:
                    del missing[need]
    return held, tuple(sorted(moved, key=lambda move: (move.target, move.group, move.part or (0, 0))))
