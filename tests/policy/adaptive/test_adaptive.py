"""The adaptive policy: the best by Eq. 8, the same every time; and who wins when."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec
import pytest

from planaria.estimate.memory import worker_memory_bytes
from planaria.estimate.step_time import step_time_s
from planaria.estimate.transfer_time import transfer_time
from planaria.plan.costs.model_profile import LinkCost, ModelProfile
from planaria.plan.errors import NoReplica, TooFewNodes
from planaria.plan.plan import NodeId, Plan, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.plan.thresholds import CHANGE_S, DEGRADED_SAVES_S, RESTORE_S
from planaria.plan.validate import lacking, validate
from planaria.planner.placement.placement import Holders
from planaria.policy.adaptive.adaptive import AdaptivePolicy
from planaria.policy.adaptive.canonical import canonical
from planaria.policy.adaptive.objective import Course, next_loss_s, transition_s, worth
from planaria.policy.candidate_record import CandidateRecord
from planaria.policy.forecast import FailureForecast, exposure
from planaria.policy.interface import Candidate, ReplanRequest
from planaria.policy.planner import Planner
from planaria.policy.reroute import ReroutePolicy
from planaria.policy.templates import TemplatesPolicy
from planaria.profile.presets.presets import preset
from tests.plan.profiles import uniform_profile
from tests.proof import rest_in_proof

SMALL = uniform_profile(8)
DEAR = uniform_profile(8, link=LinkCost(latency_s=1e-4, bandwidth_bytes_per_s=1e9), group_bytes=40_000_000)
"""A layer's state is under way for 0.12 s; its compute takes 0.03 s a microbatch."""


def settings(nodes: int = 9, smallest: int = 3, microbatches: int = 24, fault_tolerance: int = 1) -> PlannerSettings:
    return PlannerSettings(
        num_microbatches=microbatches, fault_tolerance=fault_tolerance, num_nodes=nodes, devices_per_node=1,
        min_nodes=smallest,
    )  # fmt: skip


def started(profile: ModelProfile, of: PlannerSettings) -> tuple[AdaptivePolicy, Plan]:
    policy = AdaptivePolicy.of(Planner(profile, of))
    return policy, policy.initial([NodeId(n) for n in range(of.num_nodes)], 1).plan


def held(plan: Plan, *lost: int, came: tuple[int, ...] = ()) -> Holders:
    holders = {w: groups for w, groups in plan.groups_of.items() if plan.node_of(w) not in lost}
    return holders | {WorkerId(node): () for node in came}


def after(policy: AdaptivePolicy, plan: Plan, *lost: int, came: tuple[int, ...] = (), **forecast: float) -> Candidate:
    asked = policy.with_forecast(FailureForecast(**{"time_to_failure_s": 1e5, **forecast}))  # type: ignore[arg-type]
    return asked.reconfigure(
        ReplanRequest(
            plan=plan,
            lost=[NodeId(n) for n in lost],
            holders=held(plan, *lost, came=came),
            generation=plan.generation + 1,
        )
    )


# The objective


def test_worth_is_throughput_times_effective_time() -> None:
    """Throughput times the effective time ratio; the horizon is the sum of both times."""
    course = Course(step_time_s=0.5, transition_s=20.0, peril_before=0.0, peril=0.0)
    assert worth(course, FailureForecast(time_to_failure_s=100.0), 100.0).steps_per_s == pytest.approx(2 * 80 / 100)
    assert worth(course, FailureForecast(time_to_failure_s=10.0), 10.0).steps_per_s == 0


def test_what_a_last_replica_costs() -> None:
    course = Course(step_time_s=0.5, transition_s=20.0, peril_before=0.25, peril=0.0)
    at_stake = RESTORE_S + 40 * 0.5 + 100 / 2
    without = worth(course, FailureForecast(time_to_failure_s=100.0, steps_at_stake=40), 100.0)
    assert without.risk_s == pytest.approx(0.25 * 20 / 100 * at_stake)
    assert without.steps_per_s == pytest.approx(2 * (80 - without.risk_s) / 100)
    saved = FailureForecast(time_to_failure_s=100.0, steps_at_stake=40, checkpoint_every=60)
    mean_s = (10 * (20 + 30) / 2 + 90 * 30 / 2) / 100  # from 20 s to 30 s, then from a checkpoint to the next
    assert worth(course, saved, 100.0).risk_s == pytest.approx(0.25 * 20 / 100 * (RESTORE_S + mean_s))


def test_what_a_last_replica_costs_where_the_state_is_saved_because_the_plan_is_degraded() -> None:
    """No checkpoint is asked for; one is written after the first step, and then every minute."""
    course = Course(step_time_s=0.5, transition_s=2.0, peril_before=0.25, peril=0.25, is_degraded=True)
    forecast = FailureForecast(time_to_failure_s=1000.0, steps_at_stake=400)
    saved = worth(course, forecast, 1000.0)
    mean_s = (2.5 * (200 + 2.5 / 2) + 997.5 * DEGRADED_SAVES_S / 2) / 1000
    assert saved.risk_s == pytest.approx(0.25 * (RESTORE_S + mean_s))
    full = worth(replace(course, is_degraded=False), forecast, 1000.0)
    assert full.risk_s == pytest.approx(0.25 * (RESTORE_S + 200 + 500))
    soon = worth(course, replace(forecast, time_to_failure_s=10.0, steps_at_stake=0), 10.0)
    assert soon.risk_s == pytest.approx(0.25 * (RESTORE_S + (2.5 * 1.25 + 7.5 * 3.75) / 10)), "it is not a minute yet"
    asked = worth(course, replace(forecast, checkpoint_every=4, steps_at_stake=0), 1000.0)
    assert asked.risk_s == pytest.approx(0.25 * (RESTORE_S + 1), rel=1e-3), "what the user wants is more often"


def test_what_the_next_loss_costs() -> None:
    """Of two pipelines the one that is left does the work of both; of three, two share it."""
    course = Course(step_time_s=0.5, transition_s=0.0, peril_before=0.0, peril=0.0, loss_s=10.0)
    assert worth(course, FailureForecast(time_to_failure_s=100.0), 100.0).steps_per_s == pytest.approx(2 * 90 / 100)
    assert worth(course, FailureForecast(time_to_failure_s=100.0), 20.0).steps_per_s == pytest.approx(2 * 18 / 20), (
        "the end"
    )
    costs = []
    for nodes in (6, 9, 18):
        plan = started(SMALL, settings(nodes, 3, 36))[1]
        step_s = step_time_s(plan, SMALL)
        costs.append(next_loss_s(plan, SMALL, step_s) / step_s)
    assert pytest.approx(costs[0]) == 0.5
    assert costs[0] > costs[1] > costs[2] > 0


def test_the_horizon_ends_with_the_job() -> None:
    assert FailureForecast(time_to_failure_s=100.0).horizon_s(1.0) == 100
    assert FailureForecast(time_to_failure_s=100.0, steps_left=7).horizon_s(2.0) == 14
    assert FailureForecast(time_to_failure_s=10.0, steps_left=7).horizon_s(2.0) == 10


def test_peril_is_the_chance_that_a_loss_takes_a_last_replica() -> None:
    a, b, c = (NodeId(n) for n in range(3))
    assert exposure([(a, (0, 1)), (b, (0, 1)), (c, ())], 2).peril(1.0) == 0
    assert exposure([(a, (0, 1)), (b, (0,)), (c, ())], 2).peril(1.0) == pytest.approx(1 / 3)
    assert exposure([(a, (0, 1)), (a, (0, 1))], 2).peril(1.0) == 1, "two devices of one node"


@pytest.mark.parametrize("zones", [("",), ("x", "y")])
def test_peril_of_bulks_is_as_often_as_when_they_are_drawn(zones: tuple[str, ...]) -> None:
    """As often as when bulks are drawn: their sizes geometric, from one zone."""
    draw, mean, num = random.Random(1), 1.6, 40
    zone_of = {NodeId(n): zones[n % 7 % len(zones)] for n in range(num)}
    held = {NodeId(n): (n % 8,) for n in range(24)} | {NodeId(n): (8 + n % 3,) for n in range(24, 33)}
    struck, tries = 0, 40_000
    for _ in range(tries):
        zone = zone_of[draw.choice(range(num))]  # type: ignore[index]
        size = 1
        while draw.random() > 1 / mean:
            size += 1
        there = [node for node in zone_of if zone_of[node] == zone]
        bulk = set(draw.sample(there, min(size, len(there))))
        left = {group for node, groups in held.items() if node not in bulk for group in groups}
        struck += len(left) < 11
    told = exposure([(node, held.get(node, ())) for node in zone_of], 11, zone_of).peril(mean)
    assert told == pytest.approx(struck / tries, rel=0.25)


# The choice, against a computation of its own


@pytest.mark.parametrize("seed", rest_in_proof(range(25), kept=5))
def test_the_best_of_what_the_others_propose(seed: int) -> None:
    """No policy alone, and no combination in time, is worth more; the estimates are those of the chosen plan."""
    draw = random.Random(seed)
    smallest, fault_tolerance = draw.randint(1, 3), draw.randint(0, 2)
    of = settings(
        smallest * (fault_tolerance + 1) + draw.randint(1, 4), smallest, draw.choice([12, 24]), fault_tolerance
    )
    profile = draw.choice([SMALL, DEAR])
    policy, plan = started(profile, of)
    lost = draw.sample(range(of.num_nodes), draw.randint(1, min(2, of.num_nodes - 1)))
    time_s = draw.choice([0.3, 3.0, 30.0, 1e4])
    nodes = [NodeId(n) for n in lost]
    try:
        chosen = after(policy, plan, *lost, time_to_failure_s=time_s)
    except (NoReplica, TooFewNodes):
        with pytest.raises((NoReplica, TooFewNodes)):
            ReroutePolicy.of(Planner(profile, of)).reconfigure(
                ReplanRequest(plan=plan, lost=nodes, holders=held(plan, *lost), generation=2)
            )
        return
    validate(chosen.plan, fault_tolerance=None if chosen.is_degraded else fault_tolerance)
    assert chosen.is_degraded == bool(lacking(chosen.plan, fault_tolerance))
    best = chosen.candidates[0]
    assert best.step_time_s == pytest.approx(step_time_s(chosen.plan, profile))
    assert best.memory_bytes == max(worker_memory_bytes(chosen.plan, profile, w) for w in chosen.plan.workers)
    assert [c.samples_per_s for c in chosen.candidates] == sorted(c.samples_per_s for c in chosen.candidates)[::-1]
    # Which detours are found depends a little on the numbers of nodes: the same question for all.
    asked = canonical(ReplanRequest(plan=plan, lost=nodes, holders=held(plan, *lost)), may_rename=True).request
    for other in (TemplatesPolicy.of(Planner(profile, of)), ReroutePolicy.of(Planner(profile, of))):
        try:
            alone = other.reconfigure(ReplanRequest(plan=asked.plan, lost=(), holders=asked.holders, generation=2))
        except TooFewNodes:
            continue
        if alone.is_degraded and not chosen.is_degraded:
            continue
        course = Course(
            step_time_s=step_time_s(alone.plan, profile),
            transition_s=CHANGE_S + transfer_time(alone.plan, profile.links).time_s,
            peril_before=peril_of(plan, held(plan, *lost)),
            peril=peril_of(alone.plan, alone.plan.groups_of),
            loss_s=next_loss_s(alone.plan, profile, step_time_s(alone.plan, profile)),
        )
        value = worth(course, FailureForecast(time_to_failure_s=time_s), time_s)
        assert best.samples_per_s >= value.steps_per_s * of.num_microbatches * (1 - 1e-9)


def peril_of(plan: Plan, holders: Holders) -> float:
    holding = ((plan.node_of(worker), groups) for worker, groups in holders.items())
    return exposure(holding, len(plan.groups)).peril(1.0)


def test_the_same_question_has_the_same_answer() -> None:
    one, two = (after(*started(DEAR, settings()), 1, 4, time_to_failure_s=20.0) for _ in range(2))
    assert one == two
    assert one.plan.content_hash == two.plan.content_hash


# Who wins when


def test_state_does_not_move_when_the_next_loss_is_near() -> None:
    """Transfers of 0.12 s a layer are no use before a loss that is 0.1 s away; for a day they are."""
    policy, plan = started(DEAR, settings())
    near, far = after(policy, plan, 1, time_to_failure_s=0.1), after(policy, plan, 1)
    assert near.how == "reroute"
    assert far.how != "reroute"
    assert near.step_time_s > far.step_time_s


def test_state_may_move_beside_a_rerouted_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who gets state and has other work does that meanwhile. What then follows moves nothing."""
    policy, plan = started(DEAR, settings(nodes=7, smallest=2, microbatches=12))
    options = next(iter(prepared(policy, plan, 1).answers.known.values()))
    beside = [option for option in options if option.beside is not None]
    assert beside
    for option in beside:
        second_s = 2 * policy.forecast.change_s + policy.forecast.decision_s
        longer_s = max(0.0, max(option.beside.step_time_s, option.transfer_s) - option.step_time_s)
        assert transition_s(option, policy.forecast) == pytest.approx(second_s + longer_s)
    monkeypatch.setattr(
        "planaria.policy.adaptive.adaptive.transition_s",
        lambda option, forecast, before_s: 0.0 if option.beside is not None else transition_s(option, forecast) + 1e3,
    )
    target = after(policy, plan, 1)
    warm = target.beside
    assert warm is not None
    assert warm.candidates == target.candidates
    validate(warm.plan)
    assert not {1} & set(warm.plan.nodes)
    assert warm.is_degraded == bool(lacking(warm.plan, 1))
    monkeypatch.undo()
    again = policy.reconfigure(
        ReplanRequest(plan=warm.plan, lost=[NodeId(1)], holders=warm.plan.groups_of, generation=3)
    )
    assert not again.plan.transfers
    assert again.beside is None


# Answers in advance


def prepared(policy: AdaptivePolicy, plan: Plan, *lost: int) -> AdaptivePolicy:
    for _ in policy.precompute(ReplanRequest(plan=plan, lost=[NodeId(n) for n in lost], holders=held(plan, *lost))):
        pass
    return policy


@pytest.mark.parametrize("seed", rest_in_proof(range(12), kept=3))
def test_the_answer_in_advance_is_the_answer_at_the_loss(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the forecast is by then; and nothing is simulated any more."""
    draw = random.Random(seed)
    of = settings(draw.randint(6, 10), draw.randint(1, 3), draw.choice([12, 24]), draw.randint(0, 1))
    profile = draw.choice([SMALL, DEAR])
    thinker, plan = started(profile, of)
    lost = draw.randrange(of.num_nodes)
    at_once = after(started(profile, of)[0], plan, lost, time_to_failure_s=50.0 + seed, steps_left=100)
    prepared(thinker, plan, lost)
    monkeypatch.setattr("planaria.policy.adaptive.adaptive.found_in_pieces", None)
    assert after(thinker, plan, lost, time_to_failure_s=50.0 + seed, steps_left=100) == at_once


def test_nodes_in_equal_places_have_one_answer() -> None:
    """Twelve nodes in three pipelines of four: what is found out for one stage holds for all three of its nodes."""
    policy, plan = started(SMALL, settings(nodes=12))
    assert [len(pipeline.stages) for pipeline in plan.pipelines] == [4] * 3
    for node in range(12):
        prepared(policy, plan, node)
    assert len(policy.answers.known) == 4
    shapes = set()
    for node in (1, 5, 9):
        proposal = after(policy, plan, node)
        validate(proposal.plan)
        assert node not in proposal.plan.nodes
        assert f"Pipeline {node // 4} lost node {node}" in proposal.reason or f"Node {node} is gone" in proposal.reason
        shapes.add((proposal.step_time_s, proposal.transfer_bytes))
    assert len(shapes) == 1


def test_other_speeds_are_another_question() -> None:
    policy, plan = started(SMALL, settings(nodes=12))
    prepared(policy, plan, 1)
    slow = policy.with_planner(policy.planner.with_speeds({NodeId(4): 0.5}))
    assert not slow.answers.known
    assert min(c.step_time_s for c in after(slow, plan, 1).candidates) > min(
        c.step_time_s for c in after(policy, plan, 1).candidates
    )


def test_what_cannot_be_answered_is_no_error_before_it_is_asked() -> None:
    policy, plan = started(SMALL, settings(nodes=4, smallest=2, microbatches=8, fault_tolerance=0))
    prepared(policy, plan, 0, 1, 2, 3)


# Where candidates come from


def test_a_search_beyond_the_templates() -> None:
    """A number of pipelines and sizes that the paper's ways do not come to; every plan is whole and fits."""
    policy, plan = started(SMALL, settings(nodes=12, microbatches=24))
    names = {candidate.name for candidate in after(policy, plan, 1, 5).candidates}
    assert any(name.startswith("search") for name in names), names
    for option in next(iter(prepared(policy, plan, 1, 5).answers.known.values())):
        made = option.plan
        assert set(made.nodes) <= set(range(10)), "canonical numbers"
        if not made.transfers or option.beside is None:
            validate(made, fault_tolerance=None if option.is_degraded else 1)


def test_after_a_loss_steps_are_no_longer_than_if_the_job_began_so() -> None:
    """11 + 11 nodes have nearly the shortest compute, but 12 + 10 are cut so that sums take less."""
    profile = preset("gpt3-2.7b", "a100")
    of = PlannerSettings(
        num_microbatches=64, fault_tolerance=1, num_nodes=23, devices_per_node=1,
        memory_bytes=profile.device.memory_bytes,
    )  # fmt: skip
    policy, plan = started(profile, of)
    lost = plan.pipelines[0].stages[0].worker
    later, begun = after(policy, plan, lost), policy.initial([NodeId(n) for n in range(22)], 1)
    assert later.step_time_s <= begun.step_time_s
    validate(later.plan, fault_tolerance=1)


def test_smaller_pipelines_than_the_user_asked_for_where_they_are_known_to_fit() -> None:
    roomy = replace(settings(nodes=12), memory_bytes=10**12)
    assert {template.num_nodes for template in Planner(SMALL, roomy).sizes} >= {1, 2, 3}
    assert min(template.num_nodes for template in Planner(SMALL, settings(nodes=12)).sizes) == 3


def test_backwards_are_split_only_where_they_fit() -> None:
    """By the job's limit, or what the profile says of its devices; where nobody knows, as everywhere else."""
    policy, plan = started(SMALL, settings(nodes=12))
    free = after(policy, plan, 1).candidates
    assert any("zb-h2" in c.name for c in free)
    tighter = told_within(least_split(free) - 1)
    assert any("zb-h1" in c.name for c in tighter), "it keeps less"
    assert not any("zb-h2" in c.name for c in tighter)
    assert not any("zb-" in c.name for c in told_within(least_split(tighter) - 1))


def least_split(candidates: Sequence[CandidateRecord]) -> int:
    return min(c.memory_bytes for c in candidates if "zb-" in c.name)


def told_within(memory_bytes: int) -> Sequence[CandidateRecord]:
    device = msgspec.structs.replace(SMALL.device, memory_bytes=memory_bytes)
    policy, plan = started(msgspec.structs.replace(SMALL, device=device), settings(nodes=12))
    return after(policy, plan, 1).candidates


def another(planner: Planner, request: ReplanRequest) -> Iterator[Candidate | None]:
    """What the policy `templates` proposes."""
    found = TemplatesPolicy(planner).reconfigure(request)
    yield replace(found, name=f"another ({found.how})", explain=lambda asked, plan: "As under another.")


def test_a_source_more_is_a_line_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the table: its proposal is weighed with the others, under its name."""
    monkeypatch.setattr("planaria.policy.adaptive.candidates.SOURCES", [another])
    policy, plan = started(SMALL, settings(nodes=12))
    proposal = after(policy, plan, 1)
    assert {c.name.split(" ")[0] for c in proposal.candidates} == {"another"}
    assert proposal.reason.startswith("As under another")
    validate(proposal.plan)


def test_a_degraded_plan_does_not_last_where_a_full_one_is_possible_in_time() -> None:
    policy, plan = started(DEAR, settings())
    degraded = after(policy, plan, 1, time_to_failure_s=0.1)
    assert degraded.is_degraded
    assert "reroute" in degraded.reason
    for time_s in (5.0, 1e5):
        full = after(policy, plan, 1, time_to_failure_s=time_s)
        assert not full.is_degraded
        assert not any(candidate.is_degraded for candidate in full.candidates)


def test_a_degraded_plan_is_left_when_nodes_come() -> None:
    policy, plan = started(DEAR, settings())
    degraded = after(policy, plan, 1, time_to_failure_s=0.1).plan
    full = after(policy, degraded, came=(9,), time_to_failure_s=0.1, at_once=False)
    assert not full.is_degraded
    assert 9 in full.plan.nodes


def test_too_few_nodes_for_templates() -> None:
    """Rerouting goes on, degraded; of three nodes for two pipelines of two, nothing else is possible."""
    policy, plan = started(SMALL, settings(nodes=4, smallest=2, microbatches=8))
    proposal = after(policy, plan, 1)
    assert (proposal.how, proposal.is_degraded) == ("reroute", True)
    assert proposal.reason.endswith("Nothing but reroute is possible.")


def test_a_risk_is_worth_a_slower_plan() -> None:
    """Of two courses the faster one may lose everything."""
    fast = Course(step_time_s=1.0, transition_s=0.0, peril_before=0.5, peril=0.5)
    safe = Course(step_time_s=1.2, transition_s=0.0, peril_before=0.0, peril=0.0)
    saved = FailureForecast(time_to_failure_s=1000.0, steps_at_stake=0, checkpoint_every=10)
    unsaved = replace(saved, steps_at_stake=500, checkpoint_every=0)
    assert worth(fast, saved, 1000.0).steps_per_s > worth(safe, saved, 1000.0).steps_per_s
    assert worth(fast, unsaved, 1000.0).steps_per_s < worth(safe, unsaved, 1000.0).steps_per_s


def test_where_nodes_go_in_bulks_a_third_replica_is_worth_a_longer_step() -> None:
    policy, plan = started(DEAR, settings(nodes=10, smallest=1))
    times = {"time_to_failure_s": 600.0, "steps_at_stake": 200, "checkpoint_every": 500}
    alone, bulks = (after(policy, plan, 1, **times, nodes_together=nodes) for nodes in (1.0, 3.0))
    assert (len(alone.plan.pipelines), len(bulks.plan.pipelines)) == (2, 3)
    assert alone.step_time_s < bulks.step_time_s


def test_near_the_end_nothing_is_worth_waiting_for() -> None:
    """Five pipelines of which one is broken: new ones have the shorter step, but their state has to come first."""
    profile = uniform_profile(8, link=LinkCost(latency_s=1e-4, bandwidth_bytes_per_s=1e9), group_bytes=32_000_000)
    policy, _ = started(profile, settings(nodes=10, smallest=2, microbatches=20))
    plan = policy.planner.instantiated(policy.planner.templates[:1], [NodeId(node) for node in range(10)], 1)
    assert after(policy, plan, 1, transfer_stretch=3.0).how != "reroute"
    last = after(policy, plan, 1, steps_left=1, transfer_stretch=3.0)
    assert last.how == "reroute"
    assert not last.is_degraded
    assert "to the end" in last.reason


def test_speeds_are_known_to_all_candidates() -> None:
    policy, plan = started(SMALL, settings())
    slow = policy.with_planner(policy.planner.with_speeds({NodeId(2): 0.5}))
    proposal = slow.reconfigure(ReplanRequest(plan=plan, lost=[NodeId(5)], holders=held(plan, 5), generation=2))
    assert min(c.step_time_s for c in proposal.candidates) > min(
        c.step_time_s for c in after(policy, plan, 5).candidates
    )
    assert "Chosen:" in proposal.reason
