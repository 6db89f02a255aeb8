"""The policy: its plans are those of the plan package, its sentences say what happened."""

from __future__ import annotations

from planaria.plan.ledger import Ledger
from planaria.plan.plan import NodeId, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.plan.validate import validate
from planaria.policy.proposal import Policy
from planaria.policy.templates import TemplatesPolicy
from tests.plan.profiles import uniform_profile

PROFILE = uniform_profile(6)
SETTINGS = PlannerSettings(num_microbatches=8, fault_tolerance=1, num_nodes=5, devices_per_node=1, min_nodes=2)


def policy() -> Policy:
    return TemplatesPolicy(PROFILE, SETTINGS)


def test_the_first_plan() -> None:
    proposal = policy().initial([NodeId(n) for n in range(5)], 1)
    assert proposal.reason == (
        "5 nodes make 2 pipelines (1 of 2 nodes and 1 of 3 nodes), the fastest way to keep 2 replicas."
    )
    assert proposal.step_time_s > 0
    assert (proposal.how, proposal.transfer_bytes) == ("initial", 0)


def test_a_loss_between_steps() -> None:
    plan = policy().initial([NodeId(n) for n in range(5)], 1).plan
    holders = {w: groups for w, groups in plan.groups_of.items() if w != 1}
    proposal = policy().reconfigure(plan, [NodeId(1)], holders, 2)
    validate(proposal.plan, fault_tolerance=1)
    assert proposal.reason == (
        "Pipeline 0 lost node 1; 1 pipeline is made again from the 2-node template; "
        "2 layers (2.4 MB) move from surviving replicas."
    )
    assert (proposal.how, proposal.transfer_bytes) == ("simple", 2_400_000)


def test_a_loss_within_a_step() -> None:
    plan = policy().initial([NodeId(n) for n in range(5)], 1).plan
    live = [WorkerId(w) for w in (0, 1, 2, 3)]
    proposal = policy().finish_step(plan, live, [WorkerId(3)], Ledger.empty(6), plan.layers_of, 2)
    assert proposal.reason == "Pipeline 1 lost node 4; 3 microbatches of 8 run again, where lost, on 3 live workers."
    assert proposal.how == "finish step"
    done = Ledger.from_bits([sum(1 << m for m in plan.routes[1].microbatches)] * 6)
    proposal = policy().finish_step(plan, live, [WorkerId(3)], done, plan.layers_of, 2)
    assert "nothing runs again" in proposal.reason


def test_the_same_question_has_the_same_answer() -> None:
    nodes = [NodeId(n) for n in range(5)]
    assert policy().initial(nodes, 1) == policy().initial(nodes, 1)
