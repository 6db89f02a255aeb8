"""Replicas: how many nodes hold each parameter group under a plan, and whether that is what f asks for.

A replica is an owner's or a shadow's. Two on one node die together, so they count as one.
"""

from __future__ import annotations

import msgspec

from planaria.plan.plan import Plan


def num_replicas(plan: Plan) -> tuple[int, ...]:
    """Of each parameter group, the nodes that hold it. A shadow whose state is under way does not hold it yet."""
    if not plan.shadows and plan.devices_per_node == 1:
        return plan.num_owners
    coming = {(move.group, move.target) for move in plan.transfers}
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


def arrived(plan: Plan) -> Plan:
    """The plan with all state in place that it moves, as it is before its first step can be committed."""
    return msgspec.structs.replace(plan, transfers=()) if plan.transfers else plan


def lacking(plan: Plan, fault_tolerance: int) -> dict[int, int]:
    """The layers with a group of fewer than f + 1 replicas, ascending, and how many that one has.

    A plan with any is *degraded*: f losses may take the last replica of a layer.
    """
    found: dict[int, int] = {}
    for group, count in zip(plan.groups, num_replicas(plan), strict=True):
        if count <= fault_tolerance:
            for layer in group.layers:
                found[layer] = min(count, found.get(layer, count))
    return dict(sorted(found.items()))
