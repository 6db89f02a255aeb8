"""A run that is given, not lived through."""

from __future__ import annotations

from planaria.plan.plan import NodeId, WorkerId
from planaria.protocol.given_run import at_work, given_run
from planaria.protocol.planning.failure_rate import Failures
from tests.protocol.test_devices_alone import NODES, Job


def test_a_given_run_goes_on_from_its_plan_without_devices_that_were_lost() -> None:
    settings, policy = Job().machine.settings, Job().machine.policy
    proposal = policy.initial([NodeId(node) for node in range(NODES)], 7)
    run = given_run(settings, policy, failures=Failures(100.0), decision_s=0.5)
    assert not run.checkpoints.cadence.is_due(1, 1e6, 10.0, is_degraded=True), "it saves by steps alone"
    lost = {WorkerId(3)}
    at_work(run, proposal, step=5, saved_step=2, leaving=(), lost_devices=lost, zones={}, chosen_for_s=None)
    assert (run.step, run.plan.generation, run.members.lost_devices) == (5, 7, lost)
    assert run.plan_selector.next_generation() == 8
    assert run.plan_selector.policy.planner.lost_devices == lost
    assert run.checkpoints.last is not None
    assert run.checkpoints.last.step == 2
