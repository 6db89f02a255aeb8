"""`python forced_plan.py ARGUMENTS`: `planaria ARGUMENTS` with a first plan that is given, not chosen.

FORCED_PLAN in the environment: JSON, of each pipeline the ends of its stages' layers. One worker a stage. FORCED_ZONES:
JSON, the zone of each stage, one pipeline after the other; without it, nodes are taken in ascending order.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Sequence

import msgspec

from planaria.plan.plan import NodeId, Pipeline, Stage, WorkerId
from planaria.planner.instantiation.instantiate import contiguous_routes
from planaria.planner.placement.zones import Zones
from planaria.policy.interface import Candidate
from planaria.policy.templates import TemplatesPolicy
from planaria.ui.cli.main import cli

CHOOSE = TemplatesPolicy.initial


def initial(policy: TemplatesPolicy, nodes: Sequence[NodeId], generation: int) -> Candidate:
    chosen = CHOOSE(policy, nodes, generation)
    zones = json.loads(os.environ.get("FORCED_ZONES", "null"))
    is_known = zones is not None and policy.planner.zones.keys() >= set(nodes)  # not before nodes have joined
    workers = iter(in_zones(nodes, zones, policy.planner.zones) if is_known else sorted(nodes))
    pipelines = [
        Pipeline(
            stages=tuple(
                Stage(worker=WorkerId(next(workers)), first_layer=first, end_layer=end)
                for first, end in itertools.pairwise([0, *ends])
            )
        )
        for ends in json.loads(os.environ["FORCED_PLAN"])
    ]
    count = chosen.plan.num_microbatches
    shares = [count * (at + 1) // len(pipelines) - count * at // len(pipelines) for at in range(len(pipelines))]
    plan = msgspec.structs.replace(
        chosen.plan,
        pipelines=tuple(pipelines),
        routes=contiguous_routes(pipelines, shares, chosen.plan.num_layers, generation),
    )
    return Candidate.of(policy.planner, plan, "initial", "forced")


def in_zones(nodes: Sequence[NodeId], wanted: Sequence[str], zones: Zones) -> list[NodeId]:
    """The lowest node that is left of each zone."""
    left = {zone: [node for node in sorted(nodes, reverse=True) if zones[node] == zone] for zone in wanted}
    return [left[zone].pop() for zone in wanted]


if __name__ == "__main__":
    TemplatesPolicy.initial = initial  # type: ignore[method-assign]
    cli(sys.argv[1:], prog_name="planaria")
