"""Replicas: how many nodes hold each parameter group under a plan, and whether that is what f asks for.

A replica is an owner's or a shadow's. Two on one node die together, so they count as one.
"""

from __future__ import annotations

from planaria.plan.plan import Plan


def num_replicas(plan: Plan, *, arrived: bool = False) -> tuple[int, ...]:
    """Of each parameter group, the nodes that hold it.

    Args:
        plan: whose owners count, whether or not their state is under way.
        arrived: so do shadows, as of a ring that is to last; else one whose state is under way does not hold it yet, as
            in a step beside which it moves.
    """
    if not plan.shadows and plan.devices_per_node == 1:
        return plan.num_owners
    coming = set() if arrived else {(move.group, move.target) for move in plan.transfers}
    nodes = []
    for number, (group, owners) in enumerate(zip(plan.groups, plan.owners_of, strict=True)):
        layers = set(group.layers)
        nodes.append(
            {
                plan.node_of(worker)
                for worker in owners
                if (number, worker) not in coming or not layers.isdisjoint(plan.layers_of.get(worker, ()))
            }
        )
    return tuple(map(len, nodes))


def lacking(plan: Plan, fault_tolerance: int, *, arrived: bool = False) -> dict[int, int]:
    """The layers with a group of fewer than f + 1 replicas, ascending, and how many that one has.

    A plan with any is *degraded*: f losses may take the last replica of a layer.

    Args:
        plan: whose replicas they are.
        fault_tolerance: f.
        arrived: see `num_replicas`.
    """
    found: dict[int, int] = {}
    for group, count in zip(plan.groups, num_replicas(plan, arrived=arrived), strict=True):
        if count <= fault_tolerance:
            for layer in group.layers:
                found[layer] = min(count, found.get(layer, count))
    return dict(sorted(found.items()))
