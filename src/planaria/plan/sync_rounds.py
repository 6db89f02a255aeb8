"""Sync rounds: in which order the groups' gradients are summed, so that no worker is in two sums at once.

Odyssey, section IV-B, colours the graph of conflicts. Stages are intervals, so between layers' own groups that graph
is an interval graph, and the fewest rounds are found at once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

from planaria.plan.plan import Group, Plan


def colour(plan: Plan) -> tuple[int, ...]:
    """A round for each group: groups with a common owner have different rounds, and a lower round goes first.

    Where every worker has neighbouring layers, the rounds are the fewest there are if at most one group is tied; each
    further tied group may cost one more. Where workers have layers here and there (a plan that finishes a step, or
    has shadows), they are few. Rounds are in the order in which their sums can begin.
    """
    if plan.shadows:
        layers_of = plan.layers_of
        holdings = frozenset((layers_of.get(worker, ()), groups) for worker, groups in plan.groups_of.items())
    else:
        apart = [worker for one, _ in plan.examples for worker in one.owned] if plan.is_apart else None
        some = plan.layers_of if apart is None else apart
        holdings = frozenset((plan.layers_of[worker], plan.groups_of[worker]) for worker in some)
    return _colour(plan.groups, holdings, is_shadowed=bool(plan.shadows))


_Holding = tuple[tuple[int, ...], tuple[int, ...]]
"""What a worker has: the layers that it owns, and the groups that it owns or shadows."""


@lru_cache(maxsize=256)
def _colour(groups: tuple[Group, ...], holdings: frozenset[_Holding], *, is_shadowed: bool) -> tuple[int, ...]:
    """Workers who have the same are in the same sums, so they need not be told apart."""
    tied = [g for g, group in enumerate(groups) if len(group.layers) > 1]
    own = [g for g, group in enumerate(groups) if len(group.layers) == 1]
    own.sort(key=lambda g: (groups[g].layers[0], g))
    held = sorted({its for _, its in holdings})
    contiguous = all(layers[-1] - layers[0] == len(layers) - 1 for layers, _ in holdings if layers)
    if contiguous and not is_shadowed:
        classes = _intervals(groups, held, own, tied)
    else:
        classes = _first_fit(held, [*own[::-1], *tied])
    rounds = [0] * len(groups)
    for number, members in enumerate(_launch_order(groups, holdings, classes)):
        for group in members:
            rounds[group] = number
    return tuple(rounds)


def _first_fit(held: Sequence[tuple[int, ...]], groups: Sequence[int]) -> list[list[int]]:
    """Each group, in this order, into the first class in which no owner of its is."""
    owners: dict[int, list[int]] = {}
    for at, own in enumerate(held):
        for group in own:
            owners.setdefault(group, []).append(at)
    taken = [0] * len(held)
    classes: list[list[int]] = []
    for group in groups:
        used = 0
        for owner in owners.get(group, ()):
            used |= taken[owner]
        at = (~used & used + 1).bit_length() - 1
        if at == len(classes):
            classes.append([])
        classes[at].append(group)
        for owner in owners.get(group, ()):
            taken[owner] |= 1 << at
    return classes


@dataclass(frozen=True, slots=True)
class _Range:
    """What some workers own: places [first, end) in the row of own groups, and tied groups."""

    first: int
    end: int
    tied: frozenset[int]


def _intervals(
    all_groups: Sequence[Group], held: Sequence[tuple[int, ...]], own: Sequence[int], tied: Sequence[int]
) -> list[list[int]]:
    """A class for each tied group and for as many own groups as bring the rest to the fewest; then the rest.

    No fewer classes do than the fullest worker has groups. That many do if and only if a tied group's class can
    take one own group from every worker that is full and does not have the tied group itself: then the rest is an
    interval graph, whose first fit, from one end, takes what its fullest worker has.
    """
    place = {group: at for at, group in enumerate(own)}
    ranges = set()
    for groups in held:
        places = sorted(place[group] for group in groups if group in place)
        first, end = (places[0], places[-1] + 1) if places else (0, 0)
        ranges.add(_Range(first, end, frozenset(group for group in groups if group not in place)))
    left = set(range(len(own)))
    later = set(tied)
    classes: list[list[int]] = []
    for group in sorted(tied, key=lambda g: (-all_groups[g].size_bytes, g)):
        chosen = _companions(ranges, left, later, group)
        classes.append([group, *(own[at] for at in chosen)])
        left -= set(chosen)
        later.remove(group)
    return classes + _first_fit(held, [own[at] for at in sorted(left, reverse=True)])


def _companions(ranges: set[_Range], left: set[int], later: set[int], tied: int) -> list[int]:
    """Places that share no worker with each other or with the tied group, one on each full worker without it; empty
    where that cannot be.

    A path from place to place: the next one is beyond the reach of the last, and skips no full range.
    """
    counts = {r: sum(at in left for at in range(r.first, r.end)) + len(r.tied & later) for r in ranges}
    most = max(counts.values())
    full = [r for r, count in counts.items() if count == most and tied not in r.tied]
    num_places = max(r.end for r in ranges)
    reach = list(range(1, num_places + 1))
    barred = [at not in left for at in range(num_places)]
    # From a place, the next must come before `due`: the nearest end of a full range that begins later.
    due = [num_places] * (num_places + 1)
    for r in ranges:
        for at in range(r.first, r.end):
            reach[at] = max(reach[at], r.end)
            barred[at] = barred[at] or tied in r.tied
    for r in full:
        due[r.first] = min(due[r.first], r.end - 1)
    for at in reversed(range(num_places)):
        due[at] = min(due[at], due[at + 1])
    came_from: dict[int, int] = {}
    for at in range(-1, num_places):
        if at >= 0 and at not in came_from:
            continue
        if due[at + 1] == num_places:
            return _path(came_from, at)
        for following in range(reach[at] if at >= 0 else 0, due[at + 1] + 1):
            if not barred[following]:
                came_from.setdefault(following, at)
    return []


def _path(came_from: dict[int, int], at: int) -> list[int]:
    path = []
    while at != -1:
        path.append(at)
        at = came_from[at]
    return path


def _launch_order(
    all_groups: Sequence[Group], holdings: Collection[_Holding], classes: list[list[int]]
) -> list[list[int]]:
    """The classes all of whose sums can begin early first; of what is ready together, the most bytes.

    A backward goes from a stage's last layer down, so a group waits for the layers that its owners have above it, on
    the owner where these are most.
    """
    waits = [0] * len(all_groups)
    for layers, groups in holdings:
        above = {layer: at for at, layer in enumerate(reversed(layers))}
        for group in groups:
            whole = max((above[layer] for layer in all_groups[group].layers if layer in above), default=0)
            waits[group] = max(waits[group], whole)

    def key(members: list[int]) -> tuple[int, float, int, int]:
        own = [waits[group] for group in members]
        size_bytes = sum(all_groups[group].size_bytes for group in members)
        return max(own), sum(own) / len(own), -size_bytes, min(members)

    return sorted(classes, key=key)
