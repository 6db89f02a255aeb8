"""Placement within a node: a device keeps the layers that it has, whatever the template's order."""

from __future__ import annotations

from planaria.plan.placement import assign
from planaria.plan.plan import NodeId, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.plan.templates import make_templates
from tests.plan.profiles import uniform_profile


def test_devices_keep_their_layers() -> None:
    profile = uniform_profile(4, tied=False)
    planner = PlannerSettings(num_microbatches=4, fault_tolerance=0, num_nodes=1, devices_per_node=2)
    (template,) = make_templates(profile, planner)
    holders = {WorkerId(6): (2, 3), WorkerId(7): (0, 1)}
    (pipeline,) = assign([template], [NodeId(3)], 2, profile.groups, holders)
    assert pipeline.workers == (7, 6)
