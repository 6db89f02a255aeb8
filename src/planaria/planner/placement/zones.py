"""Zones: which roles of pipelines go to which zone, so that a zone's outage takes as few replicas of a layer as it can.

A zone is whatever fails as one: a cloud's zone, a rack, a switch. Roles are taken by class (so many nodes for these
layers), and zones by how many nodes they have; which node it is, is chosen elsewhere
(`planaria.planner.placement.placement`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

import numpy as np

from planaria.plan.plan import NodeId, Pipeline
from planaria.plan.thresholds import FEW_TRANSITIONS, MOST_TRANSITIONS
from planaria.planner.placement.matching import Bools, Ints

Zones = Mapping[NodeId, str]
"""Zones of the nodes. Nodes that are not named count as one zone: nothing says that they are apart."""


_MOST_KEPT = 512
"""Most answers that are cached, some kilobytes each."""


def zone_of(zones: Zones, node: NodeId) -> str:
    return zones.get(node, "")


def differ(zones: Zones, nodes: Collection[NodeId]) -> bool:
    """Returns whether these nodes are of more than one zone."""
    return bool(zones) and len({zone_of(zones, node) for node in nodes}) > 1


def replicas_by_zone(
    pipelines: Sequence[Pipeline], num_layers: int, zones: Zones, devices_per_node: int
) -> list[dict[str, int]]:
    """Returns, for each layer, how many pipelines hold it in each zone."""
    found: list[dict[str, int]] = [{} for _ in range(num_layers)]
    for pipeline in pipelines:
        for stage in pipeline.stages:
            zone = zone_of(zones, NodeId(stage.worker // devices_per_node))
            for layer in stage.layers:
                found[layer][zone] = found[layer].get(zone, 0) + 1
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A role that some nodes are wanted for.

    Attributes:
        first_layer: of those that a node holds.
        end_layer: end of its layers, exclusive.
        kind: only nodes of the same kind change places.
    """

    first_layer: int
    end_layer: int
    kind: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spreading:
    """Roles that are to be spread over zones.

    Attributes:
        roles: classes of them; one that holds no layer is that of being idle.
        start: how many of each role are in each zone at first. Spreading keeps the sums of its rows, and for each kind
            those of its columns.
        standing: for each layer and zone, replicas that stay where they are.
        price: of each role in each zone, for one node; of two ways to spread equally well the cheaper is better.
    """

    roles: Sequence[Role]
    start: Ints
    standing: Ints
    price: Ints


def spread(wanted: Spreading) -> Ints:
    """Returns how many of each role go to each zone.

    As few layers as possible have all replicas in one zone. Then the sum of squares of the layers' replicas in each
    zone is small: where every layer can have its replicas in different zones, it is least when they all do. Begins with
    the start, and changes two places at a time as long as that helps. Where that ends short of an even spread, and the
    number of ways is small, all are tried: on small clusters the result is exact; on large ones, with their many ways
    to the same, exchanges rarely end short.
    """
    tables = (wanted.start, wanted.standing, wanted.price)
    flat = _spread(tuple(wanted.roles), wanted.start.shape, *(table.tobytes() for table in tables))
    return np.frombuffer(flat, np.int64).reshape(wanted.start.shape).copy()


@lru_cache(maxsize=_MOST_KEPT)
def _spread(roles: tuple[Role, ...], shape: tuple[int, int], start: bytes, standing: bytes, price: bytes) -> bytes:
    """Returns what `spread` does, cached: the same is asked for again, as for the same pipelines by other templates."""
    wanted = Spreading(
        roles=roles,
        start=np.frombuffer(start, np.int64).reshape(shape),
        standing=np.frombuffer(standing, np.int64).reshape(-1, shape[1]),
        price=np.frombuffer(price, np.int64).reshape(shape),
    )
    search = _Search(wanted)
    found = search.improved(wanted.start.copy())
    limit = search.worth_trying(found)
    if limit:
        best = search.exact(limit)
        if best is not None and search.cost(best) < search.cost(found):
            found = search.improved(best)
    return found.tobytes()


class _Search:
    """Search for one spreading. Layers that every role holds or lacks together are one segment."""

    def __init__(self, wanted: Spreading) -> None:
        self._wanted = wanted
        num_layers = len(wanted.standing)
        covers = np.zeros((len(wanted.roles), num_layers), np.int64)
        for number, role in enumerate(wanted.roles):
            covers[number, role.first_layer : role.end_layer] = 1
        table = np.concatenate([covers.T, wanted.standing], axis=1)
        is_first = np.ones(num_layers, np.bool_)
        is_first[1:] = (table[1:] != table[:-1]).any(axis=1)
        firsts = np.flatnonzero(is_first)
        self._weights = np.diff(np.append(firsts, num_layers))
        self._covers = covers[:, firsts]
        self._standing = wanted.standing[firsts]
        demand = wanted.start.sum(axis=1)
        self._replicas = self._covers.T @ demand + self._standing.sum(axis=1)
        self._in_one = 1 + int((self._weights * self._replicas**2).sum())
        """Cost of a layer that is in one zone only: more than all squares together."""
        kinds = np.array([role.kind for role in wanted.roles])
        self._exchangeable: Bools = kinds[:, None] == kinds[None, :]

    def _held(self, found: Ints) -> Ints:
        """Returns the replicas of each segment in each zone."""
        held: Ints = self._covers.T @ found + self._standing
        return held

    def _costs(self, held: Ints) -> Ints:
        """Returns the cost of each segment. `held` may have more dimensions before segments and zones."""
        one = (held.max(axis=-1) == self._replicas) & (self._replicas > 1)
        costs: Ints = self._weights * (one * self._in_one + (held**2).sum(axis=-1))
        return costs

    def cost(self, found: Ints) -> int:
        return int(self._costs(self._held(found)).sum())

    def worth_trying(self, found: Ints) -> int:
        """Returns how many transitions an exact search is worth; none where everything is spread evenly."""
        held = self._held(found)
        if ((held.max(axis=1) == self._replicas) & (self._replicas > 1)).any():
            return MOST_TRANSITIONS
        each, more = np.divmod(self._replicas, held.shape[1])
        even = each**2 * (held.shape[1] - more) + (each + 1) ** 2 * more
        return FEW_TRANSITIONS if ((held**2).sum(axis=1) > even).any() else 0

    # Two places at a time

    def improved(self, found: Ints) -> Ints:
        """Exchanges the zones of two nodes as long as that helps, or makes it cheaper and changes nothing else."""
        while (exchange := self._best_exchange(found)) is not None:
            one, other, here, there = exchange
            found[one, here] -= 1
            found[one, there] += 1
            found[other, there] -= 1
            found[other, here] += 1
        return found

    def _best_exchange(self, found: Ints) -> tuple[int, int, int, int] | None:
        """Returns the best exchange of two roles between two zones, as (one, other, here, there)."""
        held, price = self._held(found), self._wanted.price
        before = self._costs(held)
        best: tuple[int, int] = (0, 0)
        chosen = None
        for here, there in ((a, b) for a in range(found.shape[1]) for b in range(found.shape[1]) if a != b):
            less, more = held.copy(), held.copy()
            less[:, here] -= 1
            less[:, there] += 1
            more[:, here] += 1
            more[:, there] -= 1
            gone, come = self._costs(less) - before, self._costs(more) - before
            lacks = 1 - self._covers
            change = (self._covers * gone) @ lacks.T + lacks @ (self._covers * come).T
            dearer = (price[:, there] - price[:, here])[:, None] + (price[:, here] - price[:, there])[None, :]
            allowed = self._exchangeable & (found[:, here] > 0)[:, None] & (found[:, there] > 0)[None, :]
            if not allowed.any():
                continue
            least = int(change[allowed].min())
            if least > best[0]:
                continue
            cheapest = np.where(allowed & (change == least), dearer, np.iinfo(np.int64).max)
            one, other = divmod(int(cheapest.argmin()), len(cheapest))
            if (least, int(cheapest[one, other])) < best:
                best, chosen = (least, int(cheapest[one, other])), (one, other, here, there)
        return chosen

    # All ways

    def exact(self, most_transitions: int) -> Ints | None:
        """Returns a spreading of least cost over all ways; None: there are too many. Roles are assigned from the first
        layer on; of two ways that leave the same nodes, and the same in the layers under way, the better is kept."""
        roles, start = self._wanted.roles, self._wanted.start
        kinds = sorted({role.kind for role in roles})
        supply = {
            kind: tuple(start[[at for at, role in enumerate(roles) if role.kind == kind]].sum(axis=0).tolist())
            for kind in kinds
        }
        order = sorted(
            (at for at in range(len(roles)) if self._covers[at].any()), key=lambda at: int(self._covers[at].argmax())
        )
        begins = [int(self._covers[at].argmax()) for at in order] + [len(self._weights)]
        ways: dict[_State, tuple[int, tuple[tuple[int, ...], ...]]] = {
            (tuple(supply.values()), tuple(map(tuple, self._standing.tolist()))): (0, ())
        }
        done = transitions = 0
        for place, at in enumerate(order):
            kind, number = kinds.index(roles[at].kind), int(start[at].sum())
            num_closed = begins[place + 1] - done
            after: dict[_State, tuple[int, tuple[tuple[int, ...], ...]]] = {}
            dealings: list[list[tuple[int, ...]]] = []
            for left, _ in ways:
                dealings.append(list(islice(_compositions(number, left[kind]), most_transitions + 1)))
                transitions += len(dealings[-1])
                if transitions > most_transitions:
                    return None
            for ((left, under_way), (cost, dealt)), dealing in zip(ways.items(), dealings, strict=True):
                for parts in dealing:
                    held = self._with(under_way, at, done, parts)
                    more = sum(self._cost_of(done + i, held[i]) for i in range(num_closed))
                    rest = tuple(a - b for a, b in zip(left[kind], parts, strict=True))
                    state = (*left[:kind], rest, *left[kind + 1 :]), held[num_closed:]
                    if state not in after or cost + more < after[state][0]:
                        after[state] = cost + more, (*dealt, parts)
            ways, done = after, begins[place + 1]
        _, dealt = min(ways.values())
        found = np.zeros_like(start)
        for at, parts in zip(order, dealt, strict=True):
            found[at] = parts
        return self._with_idle(found)

    def _with(
        self, under_way: tuple[tuple[int, ...], ...], role: int, done: int, parts: tuple[int, ...]
    ) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(a + b for a, b in zip(held, parts, strict=True)) if self._covers[role, done + i] else held
            for i, held in enumerate(under_way)
        )

    def _cost_of(self, segment: int, held: tuple[int, ...]) -> int:
        replicas = int(self._replicas[segment])
        one = self._in_one if max(held) == replicas > 1 else 0
        return int(self._weights[segment]) * (one + sum(number * number for number in held))

    def _with_idle(self, found: Ints) -> Ints:
        """Returns the spreading with the nodes left of each kind as idle."""
        roles, start = self._wanted.roles, self._wanted.start
        for at, role in enumerate(roles):
            if not self._covers[at].any():
                same = [other for other, its in enumerate(roles) if its.kind == role.kind]
                found[at] = start[same].sum(axis=0) - found[[other for other in same if other != at]].sum(axis=0)
        return found


_State = tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]
"""State of the exact search: nodes left in each zone by kind, and what open segments have in each zone."""


def _compositions(number: int, most: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yields all ways to take a number from several heaps."""
    if len(most) == 1:
        if number <= most[0]:
            yield (number,)
        return
    for first in range(min(number, most[0]), -1, -1):
        for rest in _compositions(number - first, most[1:]):
            yield (first, *rest)


# Roles one by one


def zones_of_roles(
    roles: Sequence[Role],
    nodes: Sequence[NodeId],
    idle: Sequence[tuple[NodeId, float]],
    zones: Zones,
    standing: Sequence[Mapping[str, int]],
    price: Mapping[str, Sequence[int]] | None = None,
) -> list[str]:
    """Returns the zone of each role, spread as `spread` does; roles that need not change keep their zone.

    Args:
        roles: each for one node.
        nodes: that have them at first.
        idle: nodes that have none, with their kinds.
        zones: node -> its zone.
        standing: for each layer, replicas that stay where they are, by zone.
        price: of each zone, what each role costs there; None: nothing.
    """
    names = sorted({zone_of(zones, node) for node in (*nodes, *(node for node, _ in idle))}.union(*standing))
    column = {name: at for at, name in enumerate(names)}
    everybody = [*roles, *(Role(first_layer=0, end_layer=0, kind=kind) for _, kind in idle)]
    places = [column[zone_of(zones, node)] for node in (*nodes, *(node for node, _ in idle))]
    classes = {role: at for at, role in enumerate(dict.fromkeys(everybody))}
    start = np.zeros((len(classes), len(names)), np.int64)
    np.add.at(start, ([classes[role] for role in everybody], places), 1)
    prices = np.zeros_like(start)
    if price is not None:
        for at, role in enumerate(roles):
            prices[classes[role]] = [price[name][at] if name in price else 0 for name in names]
    held = np.array([[layer.get(name, 0) for name in names] for layer in standing], np.int64)
    left = spread(Spreading(roles=tuple(classes), start=start, standing=held, price=prices))
    result = [-1] * len(roles)
    for at, role in enumerate(roles):
        if left[classes[role], places[at]]:
            left[classes[role], places[at]] -= 1
            result[at] = places[at]
    for at, role in enumerate(roles):
        if result[at] < 0:
            result[at] = int(np.flatnonzero(left[classes[role]])[0])
            left[classes[role], result[at]] -= 1
    return [names[at] for at in result]
