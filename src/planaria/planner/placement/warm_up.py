"""Warm-ups: steps of the plan in force beside which the workers of the next plan get their state, as shadows.

What a step leaves of the links may be less than all of the state takes; nobody votes before state that the step's plan
moves is there. So as much moves beside one step as there is room for, whole layers that are shadows from then on, and
the rest beside the next ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from planaria.plan.plan import NodeId, Plan, Stage, Transfer, WorkerId, runs_of


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

    Args:
        plan: in force, all of its workers live.
        target: for the steps after; its transfers bring what its workers lack.
        generation: the new plan's generation.
        room: for the transfers; those that it is too small for are left out, and so are the layers that need them.
            None: all move beside this step.
    """
    own = {worker: set(plan.layers_of.get(worker, ())) for worker in {*plan.workers, *target.workers}}
    lacking = {worker: set(layers) - own[worker] for worker, layers in target.layers_of.items()}
    computing = plan.shadows if plan.redundancy is not None else ()
    for shadow in (*computing, *target.shadows):
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


@dataclass(slots=True)
class _Links:
    """Ways out of and into nodes, and for how long each is taken."""

    plan: Plan
    room: Room
    taken_s: dict[tuple[bool, NodeId], float] = field(default_factory=dict)

    def take(self, moves: list[Transfer]) -> bool:
        """Takes these transfers, if they fit or nothing else is on their ways; returns whether it does."""
        needed: dict[tuple[bool, NodeId], float] = {}
        for move in moves:
            ends = self.plan.node_of(move.source), self.plan.node_of(move.target)
            for way in ((True, ends[0]), (False, ends[1])) if ends[0] != ends[1] else ():
                needed[way] = needed.get(way, 0.0) + self.room.link_s(move)
        is_first = self.taken_s.keys().isdisjoint(needed)
        fits = all(self.taken_s.get(way, 0.0) + seconds <= self.room.seconds(way[1]) for way, seconds in needed.items())
        if is_first or fits:
            self.taken_s.update({way: self.taken_s.get(way, 0.0) + seconds for way, seconds in needed.items()})
        return is_first or fits


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
            if links.take(moves):
                held.setdefault(worker, set()).add(layer)
                moved += moves
                for need in needed:
                    del missing[need]
    return held, tuple(sorted(moved, key=lambda move: (move.target, move.group, move.part or (0, 0))))
