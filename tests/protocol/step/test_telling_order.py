"""Who is told first of the plan that finishes a step: whoever does nothing until then, or something else at once."""

from __future__ import annotations

from planaria.plan.ledger import Ledger
from planaria.plan.plan import NodeId, Plan, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.planner.finish_step.salvage import finish_step, to_halt
from planaria.planner.instantiation.instantiate import initial_plan
from planaria.planner.templates.templates import make_templates
from planaria.protocol.step.telling_order import telling_order, whose_work_changes
from tests.plan.profiles import uniform_profile

LAYERS, NODES, MICROBATCHES = 4, 12, 12
PROFILE = uniform_profile(LAYERS)
PLANNER = PlannerSettings(
    num_microbatches=MICROBATCHES, fault_tolerance=1, num_nodes=NODES, devices_per_node=1, min_nodes=2
)


def before_and_after(lost: WorkerId) -> tuple[Plan, Plan, frozenset[WorkerId]]:
    """A plan, the one that finishes its step without a worker, of which nothing was done, and who was halted."""
    templates = make_templates(PROFILE, PLANNER)
    before = initial_plan(PROFILE, templates, PLANNER, [NodeId(node) for node in range(NODES)], 1)
    live = [worker for worker in before.workers if worker != lost]
    halted = to_halt(before, live)
    holders = {worker: before.layers_of[worker] for worker in live}
    return before, finish_step(before, live, halted, Ledger.empty(LAYERS), holders, 2, PROFILE), halted


def test_halted_workers_and_those_with_new_microbatches_come_first() -> None:
    before, after, halted = before_and_after(WorkerId(3))
    acting = whose_work_changes(before, after) | halted
    order = telling_order(before, after, halted)
    assert order == sorted(acting) + sorted(set(after.workers) - acting)
    assert halted
    assert len(acting) < len(order)


def test_whoever_takes_over_the_lost_microbatches_has_other_work() -> None:
    before, after, _ = before_and_after(WorkerId(3))
    new = [route for route in after.routes if route.born == 2]
    assert whose_work_changes(before, after) == {hop.worker for route in new for hop in route.hops}
    assert whose_work_changes(before, before) == set()
