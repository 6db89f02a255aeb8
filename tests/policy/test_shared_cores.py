"""Workers that share the cores of one machine: plans are compared by what all compute, and by what is measured."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from planaria.estimate.conditions import Conditions
from planaria.estimate.step_time import outline
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.plan import NodeId
from planaria.plan.settings import PlannerSettings
from planaria.policy.adaptive.adaptive import AdaptivePolicy
from planaria.policy.detour_search import detours_in_pieces
from planaria.policy.interface import Candidate, ReplanRequest, result_of
from planaria.policy.planner import Planner
from planaria.policy.reroute import ReroutePolicy
from planaria.policy.templates import TemplatesPolicy
from tests.plan.profiles import uniform_profile

NODES = [NodeId(node) for node in range(7)]
OWN = PlannerSettings(num_microbatches=24, fault_tolerance=1, num_nodes=7, devices_per_node=1, min_nodes=2)
SHARED = replace(OWN, num_cores=2.0)


def profile() -> ModelProfile:
    """Splitting a backward costs a tenth of it."""
    costs = uniform_profile(8)
    layers = tuple(
        msgspec.structs.replace(
            layer, times=tuple(msgspec.structs.replace(times, split_s=0.1 * times.backward_s) for times in layer.times)
        )
        for layer in costs.layers
    )
    return msgspec.structs.replace(costs, layers=layers)


PROFILE = profile()


def after_a_loss(policy: AdaptivePolicy, first: Candidate) -> Candidate:
    holders = {worker: groups for worker, groups in first.plan.groups_of.items() if worker != 2}
    return policy.reconfigure(ReplanRequest(plan=first.plan, lost=[NodeId(2)], holders=holders, generation=2))


def test_split_backwards_gain_nothing_on_shared_cores() -> None:
    own, shared = AdaptivePolicy.of(Planner(PROFILE, OWN)), AdaptivePolicy.of(Planner(PROFILE, SHARED))
    first, oversubscribed = own.initial(NODES, 1), shared.initial(NODES, 1)
    assert first.plan.schedule.splits_backward, "with a core each they fill gaps"
    assert not oversubscribed.plan.schedule.splits_backward
    assert not after_a_loss(shared, oversubscribed).plan.schedule.splits_backward


def test_no_other_policy_begins_with_a_quicker_plan() -> None:
    for settings in (OWN, SHARED):
        first = AdaptivePolicy.of(Planner(PROFILE, settings)).initial(NODES, 1)
        assert first.step_time_s <= TemplatesPolicy.of(Planner(PROFILE, settings)).initial(NODES, 1).step_time_s * (
            1 + 1e-9
        )


def test_the_cores_must_do_all_the_work() -> None:
    plan = TemplatesPolicy.of(Planner(PROFILE, OWN)).initial(NODES, 1).plan
    alone = outline(plan, PROFILE)
    link, size = PROFILE.links.between_nodes, PROFILE.layers[0].output_bytes
    sent = 2 * sum(len(route.microbatches) * (len(route.hops) - 1) for route in plan.routes)
    busy_s = sum(alone.compute_s.values()) + sent * link.time_s(size)
    for cores in (0.5, 2.0, 100.0):
        found = outline(plan, PROFILE, Conditions(num_cores=cores))
        assert found.step_time_s == pytest.approx(max(alone.step_time_s, busy_s / cores))
        longer = found.step_time_s / alone.step_time_s
        assert found.longest_instruction_s == pytest.approx(longer * alone.longest_instruction_s)
        assert found.compute_s == alone.compute_s


def test_at_other_speeds_the_cores_are_still_shared() -> None:
    shared = TemplatesPolicy.of(Planner(PROFILE, SHARED))
    first = shared.initial(NODES, 1)
    assert shared.with_planner(shared.planner.with_speeds({})).estimated(first.plan).step_time_s == first.step_time_s


@pytest.mark.parametrize("stretch", [0.5, 3.0])
def test_what_was_measured_stretches_every_estimate(stretch: float) -> None:
    policy = AdaptivePolicy.of(Planner(PROFILE, SHARED))
    first = policy.initial(NODES, 1)
    before = after_a_loss(policy, first)
    measured = policy.with_planner(policy.planner.with_stretch(stretch))
    assert measured.estimated(first.plan).step_time_s == pytest.approx(stretch * first.step_time_s)
    after = after_a_loss(measured, first)
    assert after.candidates[0].step_time_s == pytest.approx(stretch * before.candidates[0].step_time_s)
    assert all(one.step_time_s >= 0.99 * stretch * before.candidates[0].step_time_s for one in after.candidates), (
        "of every source"
    )


def test_of_plans_with_as_much_work_the_one_of_most_nodes_is_taken() -> None:
    first = AdaptivePolicy.of(Planner(PROFILE, SHARED)).initial(NODES, 1)
    assert first.plan.nodes == tuple(NODES)


@pytest.mark.parametrize("stretch", [1.0, 2.0])
def test_detours_are_held_against_what_the_cores_can_do(stretch: float) -> None:
    planner = Planner(PROFILE, SHARED).with_stretch(stretch)
    pipelines = ReroutePolicy.of(planner).initial(NODES, 1).plan.pipelines
    broken = [pipelines[0], *pipelines[2:], msgspec.structs.replace(pipelines[1], stages=pipelines[1].stages[1:])]
    found = result_of(detours_in_pieces(PROFILE, SHARED, broken, 2, conditions=planner.conditions))
    assert found is not None
    assert 0 <= found.gap < 0.1
