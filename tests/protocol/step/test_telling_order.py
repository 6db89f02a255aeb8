"""Who is told at once of the plan that finishes a step: whoever does nothing until then, or something else at once.
Others wait for it, and are told the newest."""

from __future__ import annotations

from planaria.plan.ledger import Ledger
from planaria.plan.plan import NodeId, Plan, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.planner.finish_step.salvage import finish_step, to_halt
from planaria.planner.instantiation.instantiate import initial_plan
from planaria.planner.templates.templates import make_templates
from planaria.protocol.messages.to_worker import Halt, PlanMessage, StateSource
from planaria.protocol.step.telling_order import WaitingPlans, who_acts, whose_work_changes
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


def test_halted_workers_and_those_with_new_microbatches_are_told_at_once() -> None:
    before, after, halted = before_and_after(WorkerId(3))
    acting = who_acts(before, after, halted)
    assert acting == whose_work_changes(before, after) | halted
    assert halted
    assert len(acting) < len(after.workers)


def test_whoever_takes_over_the_lost_microbatches_has_other_work() -> None:
    before, after, _ = before_and_after(WorkerId(3))
    new = [route for route in after.routes if route.born == 2]
    assert whose_work_changes(before, after) == {hop.worker for route in new for hop in route.hops}
    assert whose_work_changes(before, before) == set()


def told(plan: Plan) -> PlanMessage:
    addresses = dict.fromkeys(plan.workers, "nowhere:1")
    return PlanMessage(plan=plan, step=1, addresses=addresses, exponents=(), source=StateSource.LIVE)


def test_plans_that_wait_are_told_in_turn() -> None:
    before, after, _ = before_and_after(WorkerId(3))
    waiting = WaitingPlans()
    for worker in (5, 1, 4):
        waiting.wait(WorkerId(worker), told(before))
    waiting.wait(WorkerId(1), told(after))
    assert waiting.next(2) == [(5, told(before)), (1, told(after))], "the newest, in the first one's turn"
    assert waiting.next(2) == [(4, told(before))]
    assert not waiting.next(2)
    assert not len(waiting)


def test_a_plan_that_waits_comes_before_an_order_that_follows_it_but_not_before_a_newer_plan() -> None:
    before, after, _ = before_and_after(WorkerId(3))
    waiting = WaitingPlans()
    waiting.wait(WorkerId(1), told(before))
    waiting.wait(WorkerId(2), told(before))
    assert waiting.before(WorkerId(1), Halt(generation=1, step=1)) == told(before)
    assert waiting.before(WorkerId(2), told(after)) is None
    assert waiting.before(WorkerId(3), Halt(generation=1, step=1)) is None
    assert not len(waiting)
