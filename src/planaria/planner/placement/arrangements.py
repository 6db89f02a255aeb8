"""Arrangements: the same pipelines on the same nodes, with other nodes of a zone going together.

Where nodes of a zone make a pipeline, its messages stay inside the zone and sums cross. Where nodes of a zone hold the
same layers, sums stay inside and messages cross; but the zone's outage then takes all replicas of these layers. Which
is faster is the estimate's to say. In place of zones there may be hosts: sums inside one are read in shared memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from planaria.plan.pipeline import Pipeline, renamed_stages
from planaria.plan.plan import NodeId
from planaria.planner.placement.zones import Zones, zone_of


def arrangements(pipelines: Sequence[Pipeline], zones: Zones, devices_per_node: int) -> Iterator[tuple[Pipeline, ...]]:
    """Yields the pipelines with the nodes of a zone in one pipeline, then with the nodes of a zone at the same layers;
    as far as the numbers of nodes allow. A node in two pipelines: nothing.

    Zones are taken in the order in which their nodes are, so that few nodes change places.
    """
    roles = [
        (at, pipeline.stages[place].first_layer, node)
        for at, pipeline in enumerate(pipelines)
        for node, place in _first_places(pipeline, devices_per_node).items()
    ]
    if len({node for _, _, node in roles}) < len(roles):
        return
    for order in (sorted(roles), sorted(roles, key=lambda role: (role[1], role[0]))):
        name_of = _exchanged([node for _, _, node in order], zones)
        yield tuple(
            Pipeline(stages=renamed_stages(pipeline.stages, name_of, devices_per_node)) for pipeline in pipelines
        )


def _first_places(pipeline: Pipeline, devices_per_node: int) -> dict[NodeId, int]:
    """Returns the first stage of each node of a pipeline."""
    found: dict[NodeId, int] = {}
    for place, stage in enumerate(pipeline.stages):
        found.setdefault(NodeId(stage.worker // devices_per_node), place)
    return found


def _exchanged(nodes: Sequence[NodeId], zones: Zones) -> dict[NodeId, NodeId]:
    """Returns for each node, in the order of their places, which one comes there: one zone after the other."""
    places: defaultdict[str, list[int]] = defaultdict(list)
    for place, node in enumerate(nodes):
        places[zone_of(zones, node)].append(place)
    order = sorted(places, key=lambda zone: (sum(places[zone]) / len(places[zone]), zone))
    wanted = [zone for zone in order for _ in places[zone]]
    stays = [zone_of(zones, node) == zone for node, zone in zip(nodes, wanted, strict=True)]
    free: defaultdict[str, list[NodeId]] = defaultdict(list)
    for node, does in zip(reversed(nodes), reversed(stays), strict=True):
        if not does:
            free[zone_of(zones, node)].append(node)
    return {node: node if does else free[zone].pop() for node, does, zone in zip(nodes, stays, wanted, strict=True)}
