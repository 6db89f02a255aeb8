"""Runs over traces: what is remembered changes nothing, the account adds up, and references bound what policies do."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from planaria.job.registry import PolicyName
from planaria.plan.costs.model_profile import (
    DeviceKind,
    LayerCost,
    LayerTimes,
    LinkCost,
    Links,
    ModelProfile,
    StepCosts,
)
from planaria.plan.plan import Group, NodeId
from planaria.plan.settings import PlannerSettings
from planaria.policy.planner import Planner
from planaria.policy.registry import make_policy
from planaria.simulate.baselines import limit_samples_per_s
from planaria.simulate.episode.episode_cache import EpisodeCache
from planaria.simulate.episode.situation import canonical
from planaria.simulate.experiment import Experiment
from planaria.simulate.results import Prices, RunResult, estimate, summarise
from planaria.simulate.simulation import Simulation
from planaria.simulate.timings import Timings
from planaria.simulate.traces.generators import ConstantRate, Population, generate
from planaria.simulate.traces.tally import RESTORED
from planaria.simulate.traces.trace import HOUR_S, Change, Trace, TraceEvent

NUM_NODES = 8


def profile(num_layers: int = 8) -> ModelProfile:
    layers = tuple(
        LayerCost(
            name=f"layer.{number}",
            times=(
                LayerTimes(
                    forward_s=0.01 * (1 + number % 3), backward_input_s=0.01 * (1 + number % 3), backward_weight_s=0.01
                ),
            ),
            parameter_bytes=4_000_000,
            gradient_bytes=4_000_000,
            optimizer_bytes=8_000_000,
            activation_bytes=1000,
            recompute_activation_bytes=500,
            output_bytes=1000,
        )
        for number in range(num_layers)
    )
    link = LinkCost(latency_s=1e-4, bandwidth_bytes_per_s=1e9)
    return ModelProfile(
        layers=layers,
        groups=tuple(Group(layers=(number,), size_bytes=4_000_000) for number in range(num_layers)),
        links=Links(within_node=link, between_nodes=link),
        device=DeviceKind(name="virtual"),
    )


def experiment(**changes: object) -> Experiment:
    made = Experiment(
        profile=profile(),
        settings=PlannerSettings(
            num_microbatches=24, fault_tolerance=1, num_nodes=NUM_NODES, devices_per_node=1, min_nodes=2
        ),
        checkpoint_every=10,
        mean_time_between_failures_s=600.0,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def trace(seed: int, *, hourly: float = 1.0, hours: float = 1.0, bulk: float = 1.0, notice_s: float = 0.0) -> Trace:
    population = Population(nodes=NUM_NODES, zones=("a", "b"), arrival_s=300.0, notice_s=notice_s)
    failures = ConstantRate(hourly=hourly, mean_bulk=bulk)
    return generate(failures, population, hours * HOUR_S, seed=seed, name=f"seed {seed}")


def losing(*at_s: float, hours: float = 1.0, node: int = 0) -> Trace:
    """One node after the other is lost."""
    nodes = [TraceEvent(at_s=0.0, change=Change.ADD, node=str(number)) for number in range(NUM_NODES)]
    lost = [TraceEvent(at_s=at, change=Change.REMOVE, node=str(node + turn)) for turn, at in enumerate(at_s)]
    return Trace(name="losses", horizon_s=hours * HOUR_S, events=(*nodes, *lost))


@pytest.mark.parametrize("policy", ["templates", "reroute", "adaptive"])
def test_what_is_remembered_changes_no_result(policy: str) -> None:
    """One that remembers and has seen other traces before, one that begins anew, and one that never remembers."""
    about = experiment()
    made = make_policy(PolicyName(policy), Planner(about.profile, about.settings))
    seen = about.simulation(policy, made)
    hours = 1.0 if policy == "templates" else 0.25
    traces = [trace(seed, bulk=1.5, hourly=3.0, notice_s=40.0 * (seed % 2), hours=hours) for seed in range(3)]
    for other in traces:
        seen.run(other)
    for one in traces[: 3 if policy == "templates" else 1]:
        fresh = about.simulation(policy, made, remembers=False).run(one)
        assert seen.run(one) == about.simulation(policy, made).run(one) == fresh
        assert fresh.losses > 0


def test_a_single_ring_does_not_wait_for_nodes() -> None:
    """Sums are dear, so all nodes are one ring. After each loss some state is in one place; a new ring copies it."""
    slow = msgspec.structs.replace(profile(), step=StepCosts(sum_s_per_byte=1e-7))
    about = experiment(profile=slow, settings=replace(experiment().settings, min_nodes=0))
    policy = make_policy(PolicyName.REDUNDANCY, Planner(about.profile, about.settings))
    assert len(policy.initial([NodeId(node) for node in range(NUM_NODES)], 1).plan.pipelines) == 1
    run = about.simulation("redundancy", policy).run(losing(600.0, 1200.0, 1800.0, node=2))
    assert (run.losses, run.waits, run.seconds_by["idle"]) == (3, 0, 0.0)
    assert run.plans["reconfigure"] == 3


def test_adaptive_goes_on_with_few_nodes_as_its_best_single_policy_does() -> None:
    """All but two nodes go at once, a layer's last replica with them; then others come."""
    nodes = [TraceEvent(at_s=0.0, change=Change.ADD, node=str(number)) for number in range(NUM_NODES)]
    lost = [TraceEvent(at_s=1000.0, change=Change.REMOVE, node=str(node)) for node in (1, 3, 4, 5, 6, 7)]
    came = [TraceEvent(at_s=2100.0 + 300 * node, change=Change.ADD, node=f"new {node}") for node in range(3)]
    few = Trace(name="few", horizon_s=HOUR_S, events=(*nodes, *lost, *came))
    adaptive = experiment().runner("adaptive").run(few)
    assert adaptive.fatal
    assert not adaptive.seconds_by["idle"]
    for name in ("templates", "reroute", "morph", "redundancy"):
        assert adaptive.samples >= experiment().runner(name).run(few).samples, name


def test_nothing_is_found_out_twice() -> None:
    simulation = experiment().simulation(
        "templates", make_policy(PolicyName.TEMPLATES, Planner(profile(), experiment().settings))
    )
    simulation.run(trace(1))
    found = simulation.memory.num_found
    simulation.run(trace(1))
    assert found > 0
    assert simulation.memory.num_found == found


def test_what_is_forgotten_is_found_out_again() -> None:
    about = experiment()
    policy = make_policy(PolicyName.TEMPLATES, Planner(about.profile, about.settings))
    simulation = about.simulation("templates", policy)
    small = Simulation(simulation.subject, about.terms, EpisodeCache(simulation.subject, most_workers=20))
    assert small.run(trace(1)) == simulation.run(trace(1))
    assert small.memory.num_forgotten > 1


@pytest.mark.parametrize("seed", range(4))
def test_the_causes_are_all_of_the_time(seed: int) -> None:
    about = experiment()
    (run,) = about.run("templates", [trace(seed, hourly=4.0, bulk=2.0, notice_s=30.0 * (seed % 2))])
    assert sum(run.seconds_by.values()) == pytest.approx(run.seconds)
    assert min(run.seconds_by.values()) >= 0
    assert run.losses + run.plans["warm up"] > 5


@pytest.mark.parametrize("hours", [0.2783, 0.279, 0.2805])
def test_the_causes_are_all_of_the_time_where_the_end_comes_in_a_recovery(hours: float) -> None:
    """The loss at 1000 s is found out 10 s later."""
    about = experiment(timings=Timings(detection_s=10.0))
    (run,) = about.run("templates", [losing(1000.0, hours=hours)])
    assert run.seconds == hours * HOUR_S
    assert sum(run.seconds_by.values()) == pytest.approx(run.seconds, rel=1e-12)


def test_no_run_is_longer_than_its_trace() -> None:
    """The nodes come so late that there is no time left to begin."""
    nodes = [TraceEvent(at_s=100.0, change=Change.ADD, node=str(node)) for node in range(NUM_NODES)]
    late = Trace(name="late", horizon_s=130.001, events=tuple(nodes))
    (run,) = experiment().run("templates", [late])
    assert run.seconds == 130.001
    assert sum(run.seconds_by.values()) == pytest.approx(run.seconds)


@pytest.mark.parametrize("policy", ["templates", "ideal"])
def test_who_comes_and_goes_as_the_trace_begins_is_not_there(policy: str) -> None:
    brief = [TraceEvent(at_s=0.0, change=change, node="brief") for change in (Change.ADD, Change.REMOVE)]
    plain = losing(1000.0)
    one = msgspec.structs.replace(plain, events=(*brief, *plain.events))
    (run,), (wanted,) = (experiment().run(policy, [of]) for of in (one, plain))
    assert one.initial == plain.initial
    assert run.samples == wanted.samples
    assert run.node_hours == pytest.approx(wanted.node_hours)


def test_where_nobody_is_there_not_even_the_ideal_trains() -> None:
    events = (
        TraceEvent(at_s=900.0, change=Change.ADD, node="0"),
        TraceEvent(at_s=1800.0, change=Change.REMOVE, node="0"),
    )
    (run,) = experiment().run("ideal", [Trace(name="brief", horizon_s=HOUR_S, events=events)])
    assert run.seconds_by == {"training": 900.0, "idle": 2700.0}
    assert run.effective == 0.25


def test_the_causes_are_all_of_the_time_though_the_run_ends_in_a_restore_that_was_begun_twice() -> None:
    events = [TraceEvent(at_s=0.0, change=Change.ADD, node=str(node)) for node in range(NUM_NODES)]
    events += [TraceEvent(at_s=100.0, change=Change.REMOVE, node=str(node)) for node in range(NUM_NODES)]
    events += [TraceEvent(at_s=110.0, change=Change.ADD, node=f"new{node}") for node in range(NUM_NODES)]
    events += [TraceEvent(at_s=180.0, change=Change.REMOVE, node="new0")]
    burst = Trace(name="burst", horizon_s=200.0, events=tuple(events))
    (run,) = experiment(timings=Timings(restart_s=50.0)).run("templates", [burst])
    assert run.plans["restore"] == 2
    assert sum(run.seconds_by.values()) == pytest.approx(run.seconds)


@pytest.mark.parametrize("steps_before", [0.3, 0.8, 1.3])
def test_a_job_whose_last_step_is_disturbed_ends_with_it(steps_before: float) -> None:
    """A node comes then; the trace goes on for an hour."""
    about = experiment(samples=24.0 * 20, timings=Timings(start_s=0.0))
    lost = losing(10.0)
    (quiet,) = about.run("adaptive", [lost])
    at_s = quiet.seconds - steps_before * quiet.seconds_by["training"] / 20
    joined = TraceEvent(at_s=at_s, change=Change.ADD, node="new")
    (run,) = about.run("adaptive", [msgspec.structs.replace(lost, events=(*lost.events, joined))])
    assert (run.completed, run.ended, run.seconds_by["idle"]) == (True, "", 0.0)
    assert at_s < run.seconds < quiet.seconds + 3
    assert sum(run.seconds_by.values()) == pytest.approx(run.seconds)


def test_without_failures_only_steps_are_counted() -> None:
    about = experiment(checkpoint_every=0)
    (run,) = about.run("templates", [losing()])
    step_s = (
        make_policy(PolicyName.TEMPLATES, Planner(about.profile, about.settings))
        .initial([NodeId(node) for node in range(NUM_NODES)], 1)
        .step_time_s
    )
    started_s = about.timings.start_s + about.timings.decision_s + about.timings.change_s
    assert run.steps == int((HOUR_S - started_s) / step_s)
    assert run.samples == run.steps * 24
    assert run.seconds_by["restart"] + run.seconds_by["decision"] == pytest.approx(started_s)
    assert run.survived == {}


def test_a_trace_may_begin_with_a_job_that_trains_and_end_within_a_step() -> None:
    """As scripts of failures are measured on real processes: whole steps would be up to one too few."""
    about = experiment(checkpoint_every=0, begins_trained=True)
    (run,) = about.run("templates", [losing()])
    step_s = run.seconds_by["training"] / (run.steps + run.under_way / 24)
    assert run.seconds_by == {**dict.fromkeys(run.seconds_by, 0.0), "training": HOUR_S}
    assert 0 < run.under_way < 24
    assert run.steps == int(HOUR_S / step_s)
    assert run.samples_per_s == pytest.approx(24 / step_s)


def test_a_run_ends_when_its_samples_are_trained() -> None:
    (run,) = experiment(samples=1000.0).run("templates", [losing(200.0)])
    assert run.completed
    assert 1000 <= run.samples < 1024
    assert run.seconds < HOUR_S


def test_a_loss_costs_what_its_timings_say() -> None:
    slow = Timings(detection_s=20.0, decision_s=7.0)
    (quick,), (late,) = (experiment(timings=t).run("templates", [losing(1000.0)]) for t in (Timings(), slow))
    assert late.seconds_by["detection"] == pytest.approx(20.0, abs=1.0)
    assert late.seconds_by["decision"] >= 13.0  # to finish the step, and for the plan after it
    assert quick.samples > late.samples
    assert quick.survived == late.survived == {"templates": 1}


def test_the_last_replica_sends_the_job_back_to_its_checkpoint() -> None:
    """All nodes but two go at once: no layer has a replica; the steps since the checkpoint are done again."""
    events = [TraceEvent(at_s=0.0, change=Change.ADD, node=str(node)) for node in range(NUM_NODES)]
    events += [TraceEvent(at_s=1000.0, change=Change.REMOVE, node=str(node)) for node in range(1, NUM_NODES)]
    events += [TraceEvent(at_s=1100.0, change=Change.ADD, node=f"new{node}") for node in range(4)]
    burst = Trace(name="burst", horizon_s=HOUR_S, events=tuple(events))
    timings = Timings(restart_s=50.0)
    (run,) = experiment(timings=timings).run("templates", [burst])
    assert run.fatal == 1
    assert run.waits == 1
    assert run.survived == {RESTORED: 1}
    assert run.seconds_by["idle"] == pytest.approx(100.0 + timings.start_s, abs=5.0)
    assert run.seconds_by["restart"] >= 50.0 + timings.start_s
    (never,) = experiment(timings=timings, checkpoint_every=0).run("templates", [burst])
    assert never.samples < run.samples  # back to the beginning
    assert never.seconds_by["redone"] > 800 > run.seconds_by["redone"]


def test_a_notice_saves_the_work_of_the_step() -> None:
    announced = losing(1000.0)
    announced = msgspec.structs.replace(
        announced, events=tuple(msgspec.structs.replace(e, notice_s=60.0 * (e.at_s > 0)) for e in announced.events)
    )
    (told,), (struck,) = (experiment().run("templates", [one]) for one in (announced, losing(1000.0)))
    assert told.plans == {"warm up": 1, "reconfigure": 1}
    assert told.survived == {}
    assert told.seconds_by["detection"] == 0 < struck.seconds_by["detection"]


def test_morph_goes_back_to_its_checkpoint_at_each_loss() -> None:
    (run,), (templates,) = (experiment().run(name, [losing(1000.0, 2000.0)]) for name in ("morph", "templates"))
    assert run.survived == {RESTORED: 2}
    assert run.fatal == run.plans["restore"] == 2
    assert run.seconds_by["redone"] > templates.seconds_by["redone"]
    assert run.steps < templates.steps


def test_what_drop_leaves_out_is_no_sample() -> None:
    (run,) = experiment().run("drop", [losing(1000.0)])
    assert run.survived
    assert 0.6 * 24 * run.steps < run.samples < 24 * run.steps


def test_it_waits_for_the_first_nodes() -> None:
    events = [TraceEvent(at_s=600.0 * node, change=Change.ADD, node=str(node)) for node in range(4)]
    (run,) = experiment().run("templates", [Trace(name="ramp", horizon_s=HOUR_S, events=tuple(events))])
    assert run.seconds_by["idle"] == pytest.approx(1800.0, abs=1)  # four nodes are the fewest
    assert run.steps > 0
    (none,) = experiment().run("templates", [Trace(name="ramp", horizon_s=1700.0, events=tuple(events[:3]))])
    assert none.steps == 0
    assert sum(none.seconds_by.values()) == pytest.approx(1700.0)


def test_nobody_is_better_than_the_physical_limit() -> None:
    about = experiment()
    traces = [trace(seed) for seed in range(3)]
    (on_demand,) = about.run("on-demand", traces[:1])
    limit = limit_samples_per_s(about.profile) * NUM_NODES
    assert on_demand.samples_per_s < limit
    for ideal, run in zip(about.run("ideal", traces), about.run("templates", traces), strict=True):
        assert run.samples_per_s < ideal.samples_per_s <= limit
        assert ideal.node_hours == pytest.approx(run.node_hours)
        assert ideal.cost == pytest.approx(run.cost)


def test_who_knows_the_trace_is_at_least_as_good_as_any_policy() -> None:
    about = experiment()
    one = trace(5, hourly=1.5, hours=0.5)
    best = max(about.run(name, [one])[0].samples for name in ("templates", "reroute"))
    (oracle,) = about.run("oracle", [one])
    assert oracle.policy == "oracle"
    assert oracle.samples >= best


def test_prices_are_those_of_the_zones() -> None:
    events = tuple(
        TraceEvent(at_s=0.0, change=Change.ADD, node=str(node), zone="ab"[node % 2]) for node in range(NUM_NODES)
    )
    prices = Prices(spot=1.0, on_demand=3.0, zones={"b": 2.0})
    one = Trace(name="zones", horizon_s=HOUR_S, events=events)
    about = experiment(prices=prices)
    (run,), (ideal,), (on_demand,) = (about.run(name, [one]) for name in ("templates", "ideal", "on-demand"))
    assert run.cost == pytest.approx(4 * 1.0 + 4 * 2.0) == ideal.cost
    assert on_demand.cost == pytest.approx(8 * 3.0)
    assert run.value == pytest.approx(run.samples_per_s / 12.0)


def test_canonical_names_keep_the_plan() -> None:
    """Whatever the nodes are called, the state is one, and its steps take as long."""
    about = experiment()
    policy = make_policy(PolicyName.TEMPLATES, Planner(about.profile, about.settings))
    plans = [policy.initial([NodeId(node) for node in names], 1) for names in (range(8), (3, 5, 7, 9, 11, 12, 20, 21))]
    (one, names), (other, _) = (canonical(found.plan, found.plan.nodes) for found in plans)
    assert one == other
    assert sorted(names) == list(plans[0].plan.nodes)
    assert policy.estimated(one.plan).step_time_s == pytest.approx(plans[1].step_time_s)
    assert one.num_microbatches == 24


def test_intervals_are_those_of_students_t() -> None:
    found = estimate([1.0, 2.0, 3.0, 4.0])
    assert found.mean == 2.5
    assert found.half_width == pytest.approx(3.182 * 1.2910 / 2, rel=1e-3)
    assert estimate([5.0]).half_width == 0
    assert estimate([0.0, 1.0] * 50).half_width == pytest.approx(1.984 * 0.50252 / 10, rel=2e-3)


def test_summaries_have_means_over_runs() -> None:
    runs: list[RunResult] = experiment().run("templates", [trace(seed) for seed in range(3)])
    summary = summarise(runs)
    assert summary.figures["losses"].mean == pytest.approx(sum(run.losses for run in runs) / 3)
    assert sum(summary.share_by.values()) == pytest.approx(1.0)
    assert sum(summary.survived.values()) == pytest.approx(sum(sum(run.survived.values()) for run in runs) / 3)
