"""Transfers: from whom each worker gets the state that it lacks, so that no node is busy with it for long.

Odyssey, section IV-B, chooses who takes which role (`planaria.planner.placement.placement`); who sends matters more
still.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
import numpy as np

from planaria.plan.errors import NoReplica
from planaria.plan.plan import NodeId, Plan, Stage, Transfer, WorkerId, runs_of
from planaria.plan.thresholds import WORTH_SPLITTING_BYTES
from planaria.planner.placement.matching import Ints
from planaria.planner.placement.senders import Holders, Sources, unheld


def moved(
    plan: Plan,
    holders: Holders,
    leaving: Collection[NodeId],
    devices_of: Mapping[WorkerId, int],
    sources: Sources | None = None,
) -> Plan:
    """Returns the plan with its transfers.

    Who has no place in the plan never hears of it, and can send nothing, except for nodes that leave: they take part
    in the step before it. The only holders of a group get a place as shadows.

    Args:
        plan: a plan without shadows.
        holders: the live workers, and the groups that each holds.
        leaving: nodes that still live, and that the plan does without.
        devices_of: how many devices a worker drives; of those left out, one.
        sources: made of the holders, if they are known.

    Raises:
        NoReplica: nobody holds a group.
    """
    placed, leave = plan.groups_of, set(leaving)
    told = dict(holders)
    for worker in holders.keys() - placed.keys():
        if plan.node_of(worker) not in leave:
            del told[worker]
    shadows: list[Stage] = []
    for worker in sorted(holders.keys() - told.keys()):
        groups = holders[worker]
        if only := unheld(groups, told.values()):
            shadows += shadows_holding(plan, worker, groups, only, devices_of.get(worker, 1))
            told[worker] = groups
    if shadows or plan.shadows:
        plan = msgspec.structs.replace(plan, shadows=tuple(shadows))
    return plan.renewed(transfers=transfers(plan, told, sources=sources if len(told) == len(holders) else None))


def shadows_holding(
    plan: Plan, worker: WorkerId, groups: Collection[int], only: Iterable[int], num_devices: int = 1
) -> list[Stage]:
    """Returns shadows of what a worker holds whole, and of a layer for each further one of some groups: of one that has
    other groups, too, it gets those."""
    layers = set(plan.layers_held(groups))
    for group in only:
        own = plan.groups[group].layers
        if layers.isdisjoint(own):
            layers.add(own[0])
    return runs_of(worker, layers, num_devices)


_Need = tuple[int, WorkerId]
"""A need: a group, and a worker that lacks it."""

_Piece = tuple[int, WorkerId, int, int]
"""A piece of a need: the group, the worker that lacks it, and the range of parameter bytes."""


def transfers(
    plan: Plan,
    holders: Holders,
    *,
    worth_splitting_bytes: int = WORTH_SPLITTING_BYTES,
    sources: Sources | None = None,
) -> tuple[Transfer, ...]:
    """Returns transfers of what each worker lacks, from live replicas, so that the busiest node is busy the least.

    A device of the same node sends what it has. Everything else goes between nodes, and what a node receives is
    given; so the busiest node, receiver or sender, can do no better than the larger of what the busiest receives
    and what the busiest would send if all could be split at will. Groups go whole, each from the node that has least
    to send, where that comes within `worth_splitting_bytes` of this bound; else some are split over two sources or
    more, and it does. So the busiest is within `worth_splitting_bytes` of the best there is.

    Raises:
        NoReplica: nobody holds a group.
    """
    per_node = plan.devices_per_node
    lacking = _lacking(plan, holders)
    held = {node: _held_on(node, holders, per_node) for node in {plan.node_of(target) for _, target in lacking}}
    inner = [(group, target) for group, target in lacking if group in held[plan.node_of(target)]]
    outer = [(group, target) for group, target in lacking if group not in held[plan.node_of(target)]]
    sources = sources or Sources(holders, per_node, len(plan.groups))
    _check_held(plan, sources)
    sizes = [group.size_bytes for group in plan.groups]
    needed = np.zeros(len(sizes), np.int64)
    received: dict[NodeId, int] = {}
    for group, target in outer:
        needed[group] += sizes[group]
        node = plan.node_of(target)
        received[node] = received.get(node, 0) + sizes[group]
    whole, sent = _whole(outer, sources, sizes)
    least = max(received.values(), default=0)
    if sent > least + worth_splitting_bytes:
        best = sources.busiest(needed, least)
        if sent > best.size_bytes + worth_splitting_bytes:
            whole = _split(outer, sources, sizes, best.flow, best.size_bytes, worth_splitting_bytes)
    return _from_devices(plan, holders, [*whole, *_within(inner, plan)])


def _lacking(plan: Plan, holders: Holders) -> list[_Need]:
    lacking: list[_Need] = []
    for worker, groups in plan.groups_of.items():
        has = holders.get(worker, ())
        if has == groups:
            continue
        own = frozenset(has)
        lacking.extend((group, worker) for group in groups if group not in own)
    return lacking


def _held_on(node: NodeId, holders: Holders, devices_per_node: int) -> frozenset[int]:
    """Returns the groups that some device of the node holds."""
    devices = range(node * devices_per_node, (node + 1) * devices_per_node)
    return frozenset(group for worker in devices for group in holders.get(WorkerId(worker), ()))


def _check_held(plan: Plan, sources: Sources) -> None:
    unheld = np.flatnonzero(~sources.holds.any(axis=0)).tolist()
    if unheld:
        raise NoReplica(unheld[0], plan.groups[unheld[0]].layers)


def _within(needs: Sequence[_Need], plan: Plan) -> list[tuple[NodeId, _Piece]]:
    return [(plan.node_of(target), (group, target, 0, plan.groups[group].size_bytes)) for group, target in needs]


def _whole(needs: Sequence[_Need], sources: Sources, sizes: Sequence[int]) -> tuple[list[tuple[NodeId, _Piece]], int]:
    """Returns senders of every group as a whole, and the most bytes that a node sends.

    Groups with few holders and large groups go first; each comes from the node with the least to send so far, then
    the lowest. That is one of the lowest of its class, as many as there are needs: the others cannot all be busier.
    """
    holding = sources.holds.T
    num_holders = (holding @ sources.counts).tolist()
    # One heap for all groups with the same holders. A node's load only grows, so an old entry is too low, and is
    # found out when it comes to the top.
    heaps: dict[bytes, list[tuple[int, NodeId]]] = {}
    keys = [row.tobytes() for row in holding]
    sent: dict[NodeId, int] = {}
    pieces: list[tuple[NodeId, _Piece]] = []
    for group, target in sorted(needs, key=lambda need: (num_holders[need[0]], -sizes[need[0]], need)):
        heap = heaps.get(keys[group])
        if heap is None:
            nodes = [node for at in np.flatnonzero(holding[group]) for node in sources.classes[at][: len(needs)]]
            heap = heaps[keys[group]] = sorted((sent.get(node, 0), node) for node in nodes)
        while heap[0][0] < sent.get(heap[0][1], 0):
            heapq.heapreplace(heap, (sent[heap[0][1]], heap[0][1]))
        load, node = heap[0]
        sent[node] = load + sizes[group]
        heapq.heapreplace(heap, (sent[node], node))
        pieces.append((node, (group, target, 0, sizes[group])))
    return pieces, max(sent.values(), default=0)


def _split(
    needs: Sequence[_Need],
    sources: Sources,
    sizes: Sequence[int],
    flow: Ints,
    limit: int,
    slack: int,
) -> list[tuple[NodeId, _Piece]]:
    """Returns the flow from groups to classes of nodes as pieces, no node sending more than `limit` plus `slack`.

    What a class sends is laid end to end and cut into one length for each of its nodes (McNaughton's wrap-around
    rule); a cut that falls near the border of two pieces moves there.
    """
    queues: list[list[_Piece]] = [[] for _ in sizes]
    for group, target in sorted(needs):
        queues[group].append((group, target, 0, sizes[group]))
    lines: list[list[_Piece]] = [[] for _ in sources.classes]
    for group, amounts in enumerate(flow.tolist()):
        queue = queues[group]
        queue.reverse()
        for at, amount in enumerate(amounts):
            while amount:
                piece, rest = _cut(queue.pop(), amount)
                lines[at].append(piece)
                amount -= piece[3] - piece[2]
                if rest:
                    queue.append(rest)
    weightless = [(_any_holder(sources, group), piece) for group, queue in enumerate(queues) for piece in queue]
    return weightless + [
        (node, piece)
        for nodes, line in zip(sources.classes, lines, strict=True)
        for node, share in zip(nodes, _shares(line, limit, slack // 2, len(nodes)), strict=True)
        for piece in share
    ]


def _any_holder(sources: Sources, group: int) -> NodeId:
    return min(nodes[0] for nodes, holds in zip(sources.classes, sources.holds, strict=True) if holds[group])


def _shares(line: Sequence[_Piece], limit: int, slack: int, num_shares: int) -> list[list[_Piece]]:
    """Cuts the line at multiples of `limit`, or up to `slack` beside it where two pieces meet."""
    shares: list[list[_Piece]] = [[]]
    position = 0
    queue = list(line[::-1])
    while queue:
        piece = queue.pop()
        room = len(shares) * limit - position
        size = piece[3] - piece[2]
        last = len(shares) == num_shares
        if size <= room + slack or last:
            shares[-1].append(piece)
            position += size
        elif room <= slack:
            queue.append(piece)
            shares.append([])
        else:
            first, rest = _cut(piece, room)
            assert rest is not None, f"a piece of {size} bytes does not go into {room}"
            shares[-1].append(first)
            position += room
            queue.append(rest)
            shares.append([])
    return shares + [[] for _ in range(num_shares - len(shares))]


def _cut(piece: _Piece, size: int) -> tuple[_Piece, _Piece | None]:
    """Returns the first bytes of the piece, at most `size`, and what is left of it."""
    group, target, first, end = piece
    if end - first <= size:
        return piece, None
    return (group, target, first, first + size), (group, target, first + size, end)


def _from_devices(plan: Plan, holders: Holders, pieces: Sequence[tuple[NodeId, _Piece]]) -> tuple[Transfer, ...]:
    """Returns each piece as a transfer from one device of its node: the holder that sends least, then the lowest."""
    per_node = plan.devices_per_node
    devices = {
        node: [WorkerId(w) for w in range(node * per_node, (node + 1) * per_node) if w in holders] for node, _ in pieces
    }
    sent = {worker: 0 for workers in devices.values() for worker in workers}
    moves: list[Transfer] = []
    for node, (group, target, first, end) in pieces:
        source = devices[node][0]
        if plan.devices_per_node > 1:
            holding = [worker for worker in devices[node] if group in holders[worker]]
            source = min(holding, key=lambda worker: (sent[worker], worker))
        sent[source] += end - first
        part = None if end - first == plan.groups[group].size_bytes else (first, end)
        moves.append(Transfer(group=group, source=source, target=target, part=part))
    return tuple(sorted(moves, key=lambda move: (move.target, move.group, move.part or (0, 0))))
