"""Every strategy is weighed after a loss, and chosen where it is best by construction."""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec
import pytest

from planaria.estimate.restore_time import Storage, morph_time
from planaria.plan.costs.model_profile import LinkCost, ModelProfile
from planaria.plan.errors import NoReplica, TooFewNodes
from planaria.plan.ledger import Ledger
from planaria.plan.plan import NodeId, Plan, PlanError, ScheduleKind, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.plan.thresholds import CHANGE_S
from planaria.plan.validate import lacking, num_replicas, validate
from planaria.planner.finish_step.salvage import to_halt
from planaria.planner.placement.placement import Holders
from planaria.policy.adaptive.adaptive import AdaptivePolicy
from planaria.policy.adaptive.canonical import canonical
from planaria.policy.candidate_record import CandidateRecord
from planaria.policy.forecast import FailureForecast
from planaria.policy.interface import Candidate, FinishRequest, ReplanRequest
from planaria.policy.planner import Planner
from planaria.policy.redundancy import RedundancyPolicy
from planaria.protocol.planning.straggler_policy import same_work
from tests.plan.profiles import uniform_profile

QUICK = uniform_profile(8)
SLOW_LINKS = uniform_profile(8, link=LinkCost(latency_s=1e-4, bandwidth_bytes_per_s=1e8), group_bytes=40_000_000)
"""A layer's state is under way for 1.2 s; a step takes 3 s."""

LOSS = FailureForecast(time_to_failure_s=100.0, after_loss=True)


def settings(nodes: int, smallest: int = 2, microbatches: int = 12, fault_tolerance: int = 1) -> PlannerSettings:
    return PlannerSettings(
        num_microbatches=microbatches, fault_tolerance=fault_tolerance, num_nodes=nodes, devices_per_node=1,
        min_nodes=smallest,
    )  # fmt: skip


def nodes(*numbers: int) -> list[NodeId]:
    return [NodeId(number) for number in numbers]


def started(profile: ModelProfile, of: PlannerSettings) -> tuple[AdaptivePolicy, Plan]:
    policy = AdaptivePolicy.of(Planner(profile, of))
    return policy, policy.initial(nodes(*range(of.num_nodes)), 1).plan


def in_a_ring(profile: ModelProfile, of: PlannerSettings) -> tuple[AdaptivePolicy, Plan]:
    """With a plan of redundancy's in force."""
    plan = RedundancyPolicy.of(Planner(profile, of)).initial(nodes(*range(of.num_nodes)), 1).plan
    assert plan.redundancy is not None
    return AdaptivePolicy.of(Planner(profile, of)), plan


def held(plan: Plan, *lost: int) -> Holders:
    return {w: groups for w, groups in plan.groups_of.items() if plan.node_of(w) not in lost}


def after(policy: AdaptivePolicy, plan: Plan, *lost: int, forecast: FailureForecast = LOSS) -> Candidate:
    return policy.with_forecast(forecast).reconfigure(
        ReplanRequest(plan=plan, lost=nodes(*lost), holders=held(plan, *lost), generation=plan.generation + 1)
    )


def named(proposal: Candidate, begins: str) -> list[CandidateRecord]:
    return [candidate for candidate in proposal.candidates if candidate.name.startswith(begins)]


# Redundancy


DEAR_LOSS = replace(LOSS, checkpoint_every=100, steps_at_stake=50)
"""A last replica's loss costs a hundred steps."""


def test_the_shadow_goes_on_where_others_would_have_the_last_replica() -> None:
    """Of one pipeline no peer owns what is lost; the lost worker's predecessor has it. Without the other shadows steps
    would be shorter, and any loss would be the end."""
    policy, plan = in_a_ring(QUICK, settings(4, smallest=4, microbatches=4, fault_tolerance=0))
    proposal = after(policy, plan, 1, forecast=DEAR_LOSS)
    assert proposal.how == "takeover"
    assert "both stages" in proposal.reason
    assert not proposal.plan.transfers
    assert proposal.plan.layers_of[WorkerId(0)] == (*plan.layers_of[WorkerId(0)], *plan.layers_of[WorkerId(1)])
    assert proposal.plan.shadows
    validate(proposal.plan, fault_tolerance=0)
    safe = after(policy, plan, 1, forecast=replace(DEAR_LOSS, checkpoint_every=1, steps_at_stake=0))
    assert safe.how != "takeover"
    assert safe.step_time_s < proposal.step_time_s


def test_a_takeover_is_that_of_redundancy() -> None:
    """Wherever the loss is; which of equal pipelines gets a microbatch more depends a little on nodes' numbers."""
    of = settings(8, smallest=4, microbatches=16)
    policy, plan = in_a_ring(QUICK, of)
    alone = RedundancyPolicy.of(Planner(QUICK, of))
    for lost in range(8):
        right = alone.reconfigure(ReplanRequest(plan=plan, lost=nodes(lost), holders=held(plan, lost), generation=2))
        assert right.how == "takeover"
        (told,) = [c for c in named(after(policy, plan, lost), "redundancy (takeover") if "zb-" not in c.name]
        assert told.step_time_s == pytest.approx(right.step_time_s, rel=0.1)
        assert told.transfer_bytes == 0


def test_after_a_takeover_within_the_step_the_request_is_the_same() -> None:
    """The answer was prepared for the ring as it was; the plan that finishes the step has the shadow in its place."""
    policy, plan = in_a_ring(QUICK, settings(8, smallest=4, microbatches=16))
    live = [worker for worker in plan.workers if worker != 5]
    finishing = policy.finish_step(
        FinishRequest(
            plan=plan,
            live=live,
            halted=to_halt(plan, live),
            counted=Ledger.empty(8),
            holders=plan.layers_run_by,
            generation=2,
        )
    )
    assert "takes over" in finishing.reason
    assert finishing.plan.redundancy is plan.redundancy
    before = canonical(ReplanRequest(plan=plan, lost=nodes(5), holders=held(plan, 5)), may_rename=True)
    then = finishing.plan
    later = canonical(ReplanRequest(plan=then, lost=nodes(5), holders=then.groups_of), may_rename=True)
    assert before.key == later.key


def test_a_plan_without_shadows_has_no_takeover() -> None:
    policy, plan = started(QUICK, settings(8, smallest=4, microbatches=16))
    assert not named(after(policy, plan, 1), "redundancy (takeover")


def test_a_ring_is_worth_its_step_where_the_next_loss_takes_the_last_replica() -> None:
    """Five nodes make no two pipelines of three, and f = 0 allows for one. It is quickest, any loss ends it; and few
    microbatches leave bubbles for what shadows compute."""
    policy, plan = started(QUICK, settings(6, smallest=3, microbatches=4, fault_tolerance=0))
    near = after(policy, plan, 1, forecast=replace(DEAR_LOSS, time_to_failure_s=30.0))
    assert near.how == "redundancy"
    assert "shadows its successor" in near.reason
    there = msgspec.structs.replace(near.plan, transfers=())
    assert not lacking(there, 1), "once the shadows have their state, no node has a last replica"
    validate(near.plan, fault_tolerance=0)
    far = after(policy, plan, 1, forecast=replace(LOSS, checkpoint_every=1, time_to_failure_s=1e6))
    assert far.plan.redundancy is None
    assert far.step_time_s < near.step_time_s


def test_no_ring_is_made_of_fewer_replicas_than_f_asks_for() -> None:
    """A shadow that has not got its state yet is none."""
    policy, plan = started(QUICK, settings(6, smallest=3))
    assert not named(after(policy, plan, 1), "redundancy")


def test_a_ring_and_the_same_pipelines_without_shadows_are_not_the_same_work() -> None:
    ring = in_a_ring(QUICK, settings(8, smallest=4))[1]
    assert same_work(ring, ring)
    assert not same_work(ring, msgspec.structs.replace(ring, redundancy=None))


# Morph


def restoring(of: PlannerSettings) -> PlannerSettings:
    return replace(of, may_restore=True)


CHECKPOINTED = restoring(settings(6, microbatches=24))
FAST_STORAGE = replace(
    LOSS, time_to_failure_s=10.0, checkpoint_every=10, restore_s=0.2, storage=Storage(node_bytes_per_s=1e10)
)


def test_back_to_the_checkpoint_where_storage_is_quicker_than_links() -> None:
    policy, plan = started(SLOW_LINKS, CHECKPOINTED)
    proposal = after(policy, plan, 1, forecast=FAST_STORAGE)
    assert proposal.restores
    assert proposal.candidates[0].name.startswith("morph")
    assert "Back to the last checkpoint" in proposal.reason
    assert not proposal.plan.transfers
    validate(proposal.plan, fault_tolerance=1)
    policy = policy.with_forecast(replace(FAST_STORAGE, steps_at_stake=3, time_to_failure_s=1e4))
    later = policy.reconfigure(ReplanRequest(plan=plan, lost=nodes(1), holders=held(plan, 1), generation=2))
    assert not later.restores
    for told in named(later, "morph"):
        assert told.transition_s == pytest.approx(0.2 + 3 * told.step_time_s), "a restore of 0.2 s was measured"
    slow = replace(FAST_STORAGE, storage=Storage(node_bytes_per_s=1e8))
    best = after(policy, plan, 1, forecast=slow)
    (told,) = [c for c in named(best, "morph") if "zb-" not in c.name]
    load = morph_time(proposal.plan, slow.storage, lost_steps=0, step_time_s=told.step_time_s, change_s=CHANGE_S)
    assert told.transition_s == pytest.approx(load.transition_s)


@pytest.mark.parametrize(
    "forecast",
    [
        replace(FAST_STORAGE, steps_at_stake=10_000),
        replace(FAST_STORAGE, storage=Storage(node_bytes_per_s=1e6)),
        replace(FAST_STORAGE, after_loss=False),
        replace(FAST_STORAGE, at_once=False),
    ],
    ids=["many steps lost", "slow storage", "nobody lost", "state can move beside a step"],
)
def test_nothing_is_trained_twice_where_that_costs_more(forecast: FailureForecast) -> None:
    policy, plan = started(SLOW_LINKS, CHECKPOINTED)
    assert not after(policy, plan, 1, forecast=forecast).restores


def test_without_checkpoints_nobody_goes_back() -> None:
    policy, plan = started(SLOW_LINKS, replace(CHECKPOINTED, may_restore=False))
    assert not named(after(policy, plan, 1, forecast=FAST_STORAGE), "morph")


def test_a_step_is_given_up_only_to_go_back() -> None:
    """It would be trained again anyway."""
    policy, plan = started(SLOW_LINKS, CHECKPOINTED)
    asked = ReplanRequest(plan=plan, lost=nodes(1), holders=held(plan, 1))
    assert not policy.with_forecast(FAST_STORAGE).finishes(asked)
    assert policy.with_forecast(replace(FAST_STORAGE, steps_at_stake=10_000)).finishes(asked)
    assert (
        AdaptivePolicy.of(Planner(SLOW_LINKS, replace(CHECKPOINTED, may_restore=False)))
        .with_forecast(FAST_STORAGE)
        .finishes(asked)
    )


# Drop


def dropping(of: PlannerSettings) -> PlannerSettings:
    return replace(of, may_drop=True)


SINGLE = settings(4, smallest=1, microbatches=4)
"""Four nodes with a microbatch each: of three nodes one would run two, and the others would wait for it."""


def on_single_nodes(of: PlannerSettings) -> tuple[AdaptivePolicy, Plan]:
    policy, plan = started(QUICK, of)
    assert [len(pipeline.stages) for pipeline in plan.pipelines] == [1] * 4
    return policy, plan


def test_samples_are_left_out_where_that_trains_more_and_the_job_allows_it() -> None:
    policy, plan = on_single_nodes(dropping(SINGLE))
    proposal = after(policy, plan, 1)
    assert proposal.candidates[0].name.startswith("drop")
    assert len(proposal.plan.dropped) == 1
    assert proposal.dropped == proposal.plan.dropped
    assert "1 of 4 microbatches of every step are left out" in proposal.reason
    best = proposal.candidates[0]
    assert best.samples_per_s <= 3 * QUICK.microbatch_size / best.step_time_s, "only what counts is counted"
    validate(proposal.plan, fault_tolerance=1, dropped=proposal.dropped)


def test_no_sample_is_left_out_unless_the_job_allows_it() -> None:
    policy, plan = on_single_nodes(SINGLE)
    proposal = after(policy, plan, 1)
    assert not proposal.dropped
    assert not named(proposal, "drop")


def test_no_sample_is_left_out_unless_somebody_was_lost() -> None:
    policy, plan = on_single_nodes(dropping(SINGLE))
    assert not after(policy, plan, 1, forecast=replace(LOSS, after_loss=False)).dropped
    left = after(policy, plan, 1)
    stays = policy.with_forecast(replace(LOSS, after_loss=False, at_once=False))
    again = stays.reconfigure(ReplanRequest(plan=left.plan, lost=(), holders=left.plan.groups_of, generation=3))
    assert same_work(again.plan, left.plan), "but what is left out already stays so"


@pytest.mark.parametrize("allows", [False, True])
def test_the_step_of_a_loss_leaves_out_what_the_next_ones_do(allows: bool) -> None:
    policy, plan = on_single_nodes(replace(SINGLE, may_drop=allows))
    live = [worker for worker in plan.workers if worker != 1]
    proposal = policy.with_forecast(LOSS).finish_step(
        FinishRequest(
            plan=plan,
            live=live,
            halted=to_halt(plan, live),
            counted=Ledger.empty(8),
            holders={w: plan.layers_of[w] for w in live},
            generation=2,
        )
    )
    assert len(proposal.plan.dropped) == int(allows)
    assert proposal.dropped == proposal.plan.dropped


# All of them


@pytest.mark.parametrize("seed", range(16))
def test_answers_with_all_strategies_are_the_same_in_advance(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is chosen: it is a plan as it must be, the same every time, and nothing is simulated when asked for."""
    draw = random.Random(seed)
    of = settings(draw.randint(5, 9), draw.randint(1, 3), draw.choice([8, 12, 24]), draw.randint(0, 1))
    of = replace(of, may_drop=draw.random() < 0.5, may_restore=draw.random() < 0.5)
    profile = draw.choice([QUICK, SLOW_LINKS])
    make = draw.choice([started, in_a_ring])
    thinker, plan = make(profile, of)
    lost = draw.choice(plan.nodes)
    forecast = replace(
        LOSS, time_to_failure_s=draw.choice([1.0, 30.0, 1e4]), steps_at_stake=draw.randint(0, 20), checkpoint_every=20
    )
    try:
        at_once = after(make(profile, of)[0], plan, lost, forecast=forecast)
    except (NoReplica, TooFewNodes):
        return
    validate(at_once.plan, fault_tolerance=None if at_once.is_degraded else of.fault_tolerance, dropped=at_once.dropped)
    assert not at_once.dropped or of.may_drop
    assert not at_once.restores or of.may_restore
    for _ in thinker.precompute(ReplanRequest(plan=plan, lost=nodes(lost), holders=held(plan, lost))):
        pass
    monkeypatch.setattr("planaria.policy.adaptive.adaptive.found_in_pieces", None)
    assert after(thinker, plan, lost, forecast=forecast) == at_once


# Fewer replicas than f + 1


def test_as_many_replicas_as_nodes_are_left_for() -> None:
    """f = 2, and of seven nodes five are left: enough for two pipelines of two or more, not for three. Rerouting leaves
    the first layers with one replica."""
    of = settings(7, smallest=2, microbatches=12, fault_tolerance=2)
    policy, plan = started(QUICK, of)
    lost = plan.owners_of[0][:2]
    near = replace(LOSS, time_to_failure_s=60.0, steps_at_stake=200)
    proposal = after(policy, plan, *lost, forecast=near)
    assert proposal.is_degraded
    assert min(num_replicas(proposal.plan)) == 2
    assert "2 replicas of 3" in proposal.reason
    validate(proposal.plan, fault_tolerance=1)
    rerouted = [candidate for candidate in proposal.candidates if candidate.name.startswith("reroute")]
    assert rerouted
    assert all(one.is_degraded and one.samples_per_s <= proposal.candidates[0].samples_per_s for one in rerouted)


def test_fewer_replicas_are_no_candidate_where_there_can_be_all() -> None:
    policy, plan = started(QUICK, settings(8, smallest=2, microbatches=12, fault_tolerance=2))
    told = after(policy, plan, 1).candidates
    assert not [candidate for candidate in told if "replicas" in candidate.name]
    policy, plan = started(QUICK, settings(4, smallest=2))
    told = after(policy, plan, 1).candidates
    assert not [candidate for candidate in told if "replica" in candidate.name], "one is what rerouting keeps"


def test_a_job_begins_again_with_the_replicas_that_the_nodes_left_are_enough_for() -> None:
    """As after the loss of a layer's last replica."""
    policy = AdaptivePolicy.of(Planner(QUICK, settings(9, smallest=2, fault_tolerance=2)))
    for number, replicas in ((2, 1), (3, 1), (4, 2), (5, 2)):
        first = policy.initial(nodes(*range(number)), 7)
        assert first.is_degraded
        assert min(num_replicas(first.plan)) == replicas
        assert f"{replicas} replica{'s' if replicas > 1 else ''} of 3" in first.reason
        validate(first.plan, fault_tolerance=replicas - 1)
    assert not policy.initial(nodes(*range(6)), 7).is_degraded
    with pytest.raises(PlanError, match="Add"):
        policy.initial(nodes(0), 7)


def test_where_nothing_can_be_rerouted_one_replica_is_weighed() -> None:
    """One whole pipeline, and a node that comes has no place in it."""
    policy = AdaptivePolicy.of(Planner(QUICK, settings(9, smallest=2, fault_tolerance=2)))
    plan = policy.initial(nodes(0, 1), 1).plan
    holders = {**plan.groups_of, WorkerId(2): ()}
    told = policy.with_forecast(replace(LOSS, at_once=False)).reconfigure(
        ReplanRequest(plan=plan, lost=(), holders=holders, generation=2)
    )
    assert named(told, "reroute")
    assert any(", 1 replica)" in candidate.name for candidate in told.candidates)


def test_a_ring_grows_by_a_node_that_comes() -> None:
    """Its shadows get their state beside a step, so they have it when the ring begins; not where it is to begin at
    once."""
    policy = AdaptivePolicy.of(Planner(QUICK, settings(6, smallest=2)))
    plan = RedundancyPolicy.of(Planner(QUICK, settings(6, smallest=2))).initial(nodes(0, 1), 1).plan
    holders = {**plan.groups_of, WorkerId(2): ()}
    beside = policy.with_forecast(replace(LOSS, at_once=False)).reconfigure(
        ReplanRequest(plan=plan, lost=(), holders=holders, generation=2)
    )
    assert beside.plan.redundancy is not None
    assert len(beside.plan.nodes) == 3
    assert not beside.is_degraded
    validate(beside.plan, fault_tolerance=1, arrived=True)
    assert (
        len(
            policy.with_forecast(LOSS)
            .reconfigure(ReplanRequest(plan=plan, lost=(), holders=holders, generation=2))
            .plan.nodes
        )
        == 2
    )


# Schedules that keep fewer activations

SHORT = 8_000_000
"""Bytes of memory with which pipelines of 3 nodes are the smallest that keep all activations, and of 2 under 1F1B."""


def keeping_all(number: int) -> PlannerSettings:
    return replace(settings(number, smallest=0, microbatches=16), schedule=ScheduleKind.GPIPE, memory_bytes=SHORT)


def test_too_few_nodes_for_the_jobs_schedule_are_enough_for_another() -> None:
    """Of six nodes four are left, and one pipeline of three: rerouting would keep one replica, two pipelines of two
    under 1F1B keep two."""
    policy, plan = started(QUICK, keeping_all(6))
    proposal = after(policy, plan, *(stage.worker for stage in plan.pipelines[0].stages[:2]))
    validate(proposal.plan, fault_tolerance=1)
    assert not proposal.is_degraded
    assert len(proposal.plan.nodes) == 4
    assert ", 1f1b" in proposal.candidates[0].name
    assert policy.planner.fits(proposal.plan)
    first = policy.initial(nodes(1, 3, 4, 5), 5).plan
    validate(first, fault_tolerance=1)
    assert len(first.nodes) == 4


def test_a_job_begins_on_as_many_nodes_as_the_leanest_schedule_needs() -> None:
    policy, plan = started(QUICK, keeping_all(4))
    validate(plan, fault_tolerance=1)
    assert policy.planner.fits(plan)
    with pytest.raises(PlanError):
        AdaptivePolicy.of(Planner(QUICK, keeping_all(3)))


def test_where_nodes_are_enough_for_the_jobs_schedule_no_other_is_tried() -> None:
    policy, plan = started(QUICK, keeping_all(7))
    told = after(policy, plan, plan.pipelines[0].stages[0].worker).candidates
    assert not [candidate for candidate in told if ScheduleKind.ONE_F_ONE_B.value in candidate.name]
