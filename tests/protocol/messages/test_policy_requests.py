"""A change of policy: what may be had, what is kept, and when another plan is worth it."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from planaria.job.registry import PolicyName
from planaria.plan.plan import NodeId, PlanError
from planaria.plan.settings import PlannerSettings
from planaria.policy.interface import Candidate, Policy, ReplanRequest
from planaria.policy.planner import Planner
from planaria.policy.registry import make_policy
from planaria.protocol.messages.journal import JournalPolicy, decode_entry, encode_entry
from planaria.protocol.planning.policy_switch import PolicySwitch, why_change
from planaria.protocol.run.replay import JournalState
from tests.plan.profiles import uniform_profile

PROFILE = uniform_profile(8)
SETTINGS = PlannerSettings(num_microbatches=12, fault_tolerance=1, num_nodes=6, devices_per_node=1, min_nodes=2)


def make(name: PolicyName, most_bytes: int) -> Policy:
    return make_policy(name, Planner(PROFILE, replace(SETTINGS, memory_bytes=most_bytes)))


POLICY = make(PolicyName.TEMPLATES, 0)
FULL = POLICY.initial([NodeId(node) for node in range(6)], 1)
"""Three pipelines of two nodes."""


def after_a_loss(name: PolicyName) -> Candidate:
    holders = {worker: groups for worker, groups in FULL.plan.groups_of.items() if worker != 1}
    return make(name, 0).reconfigure(ReplanRequest(plan=FULL.plan, lost=[NodeId(1)], holders=holders, generation=2))


def test_what_a_user_may_have() -> None:
    switching = PolicySwitch(PolicyName.TEMPLATES, make, may_drop=False)
    assert switching.refusal("reroute") is None
    assert "unknown" in str(switching.refusal("oobleck"))
    assert "resilience.allow_drop" in str(switching.refusal("drop"))
    assert PolicySwitch(PolicyName.TEMPLATES, make, may_drop=True).refusal("drop") is None
    assert PolicySwitch(PolicyName.TEMPLATES, None, may_drop=False).refusal("reroute") is not None


def test_a_policy_is_kept_unless_it_would_need_too_much() -> None:
    switching = PolicySwitch(PolicyName.TEMPLATES, make, may_drop=False)
    reroute = switching.candidate(PolicyName.REROUTE, None)
    switching.switch(PolicyName.REROUTE, POLICY)
    assert (switching.name, switching.is_new) == (PolicyName.REROUTE, True)
    assert switching.candidate(PolicyName.TEMPLATES, None) is POLICY
    assert switching.candidate(PolicyName.REROUTE, None) is reroute
    assert switching.candidate(PolicyName.TEMPLATES, 10**12) is not POLICY
    with pytest.raises(PlanError):
        switching.candidate(PolicyName.TEMPLATES, 1)


def test_samples_come_before_replicas_and_replicas_before_time() -> None:
    dropped, rerouted = after_a_loss(PolicyName.DROP), after_a_loss(PolicyName.REROUTE)
    assert dropped.plan.dropped
    assert not rerouted.plan.dropped
    assert dropped.step_time_s < rerouted.step_time_s
    assert why_change(dropped, rerouted, 1, 100) == "no sample is left out any more"
    assert why_change(rerouted, dropped, 1, 100) is None
    assert why_change(FULL, rerouted, 1, 100) is None, "it takes longer"
    assert why_change(rerouted, FULL, 1, 100) == "every layer has more replicas"
    assert why_change(rerouted, FULL, 2, 100) == "every layer has 3 replicas again"
    assert why_change(FULL, rerouted, 2, 100) is None


def test_time_is_worth_a_change_if_there_are_steps_left() -> None:
    slow = replace(FULL, step_time_s=2.0)
    fast = replace(FULL, step_time_s=1.0, transfer_s=30.0)
    assert why_change(slow, fast, 1, 100) == "steps are shorter"
    assert why_change(slow, fast, 1, 20) is None
    left_out = msgspec.structs.replace(FULL.plan, dropped=tuple(range(6)))
    assert replace(FULL, plan=left_out).batch_s == 2 * FULL.step_time_s


def test_the_journal_knows_the_policy() -> None:
    entry = decode_entry(encode_entry(JournalPolicy(policy=PolicyName.REROUTE)))
    assert isinstance(entry, JournalPolicy)
    assert JournalState.of([entry]).policy is PolicyName.REROUTE
