"""Sync rounds: in which order the groups' gradients are summed, so that no worker is in two sums at once."""

from __future__ import annotations

from functools import lru_cache

from planaria.plan.plan import Plan


@lru_cache(maxsize=16)
def colour(plan: Plan) -> tuple[int, ...]:
    """A round for each group: groups with a common owner have different rounds.

    Stages are intervals, so the conflicts between layers' own groups form an interval graph, and greedy
    colouring from one end is optimal: as many rounds as the fullest worker has groups. It goes from the last
    layer down, because that is the order in which gradients become whole, and a lower round goes first. A
    tied group is whole only with the lowest of its layers, and comes after all groups that it conflicts with.
    """
    rounds = [-1] * len(plan.groups)
    taken: dict[int, set[int]] = {worker: set() for worker in plan.workers}
    own = [g for g, group in enumerate(plan.groups) if len(group.layers) == 1]
    tied = [g for g, group in enumerate(plan.groups) if len(group.layers) > 1]
    for group in sorted(own, key=lambda g: (-plan.groups[g].layers[0], g)):
        used = set().union(*(taken[worker] for worker in plan.owners_of[group]))
        rounds[group] = next(r for r in range(len(used) + 1) if r not in used)
        for worker in plan.owners_of[group]:
            taken[worker].add(rounds[group])
    for group in sorted(tied, key=lambda g: (-plan.groups[g].layers[0], g)):
        used = set().union(*(taken[worker] for worker in plan.owners_of[group]))
        rounds[group] = max(used, default=-1) + 1
        for worker in plan.owners_of[group]:
            taken[worker].add(rounds[group])
    return tuple(rounds)
