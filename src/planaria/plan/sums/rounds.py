"""Sync rounds: in which order the groups' gradients are summed, so that no worker is in two sums at once.

Odyssey, section IV-B, colours the graph of conflicts. Stages are intervals, so between layers' own groups that graph
is an interval graph: first fit from one end finds the fewest rounds. With tied groups it nearly always does.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache

from planaria.plan.plan import Group, Plan


def colour(plan: Plan) -> tuple[int, ...]:
    """Returns a round for each group: groups with a common owner have different rounds, and a lower round goes first.

    Where every worker has neighbouring layers and no group is tied, the rounds are the fewest there are; with tied
    groups or layers here and there (a plan that finishes a step, or has shadows), they are few. Rounds are in the
    order in which their sums can begin.
    """
    if plan.shadows:
        layers_of = plan.layers_of
        holdings = frozenset((layers_of.get(worker, ()), groups) for worker, groups in plan.groups_of.items())
    else:
        apart = [worker for one, _ in plan.examples for worker in one.owned] if plan.is_apart else None
        some = plan.layers_of if apart is None else apart
        holdings = frozenset((plan.layers_of[worker], plan.groups_of[worker]) for worker in some)
    return _colour(plan.groups, holdings)


_Holding = tuple[tuple[int, ...], tuple[int, ...]]
"""A worker's layers that it owns, and the groups that it owns or shadows."""


@lru_cache(maxsize=256)
def _colour(groups: tuple[Group, ...], holdings: frozenset[_Holding]) -> tuple[int, ...]:
    """Returns a round for each group, from the distinct holdings: workers that hold the same are in the same sums."""
    from_the_top = sorted(range(len(groups)), key=lambda g: (groups[g].layers[-1], len(groups[g].layers), g))[::-1]
    classes = _first_fit(sorted({its for _, its in holdings}), from_the_top)
    rounds = [0] * len(groups)
    for number, members in enumerate(_launch_order(groups, holdings, classes)):
        for group in members:
            rounds[group] = number
    return tuple(rounds)


def _first_fit(held: Sequence[tuple[int, ...]], groups: Sequence[int]) -> list[list[int]]:
    """Returns classes of groups: each group, in this order, goes to the first class without any of its owners."""
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


def _launch_order(
    all_groups: Sequence[Group], holdings: Collection[_Holding], classes: list[list[int]]
) -> list[list[int]]:
    """Returns the classes ordered: first those whose sums can all begin early; of those ready together, the most bytes.

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
