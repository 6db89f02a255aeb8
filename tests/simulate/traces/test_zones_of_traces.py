"""Policies are told the zones of a trace: an outage of one takes no layer's last replica where that can be."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from planaria.job.registry import PolicyName
from planaria.plan.plan import NodeId
from planaria.planner.rings import conflicts
from planaria.policy.planner import Planner
from planaria.policy.registry import make_policy
from planaria.simulate.episode.situation import State, canonical
from planaria.simulate.simulation import Simulation
from planaria.simulate.trace_events import TraceEvents
from planaria.simulate.trace_run import TraceRun
from planaria.simulate.traces.generators import ConstantRate, Population, generate
from planaria.simulate.traces.trace import HOUR_S, Change, Trace, TraceEvent
from tests.proof import rest_in_proof
from tests.simulate.test_simulation import NUM_NODES, experiment, profile

STAYS = [policy for policy in PolicyName if policy not in (PolicyName.MORPH, PolicyName.DROP)]
"""Those that lose no step where a replica is left."""


def even(node: int) -> str:
    return "ab"[node % 2]


def outages(where: Callable[[int], str], *, is_told: bool = True) -> Trace:
    """A zone goes at once; others come in its nodes' stead, into the same zone, and it goes again."""
    zones = [where(node) if is_told else "" for node in range(NUM_NODES)]
    hit = [node for node in range(NUM_NODES) if where(node) == "a"]
    events = [TraceEvent(at_s=0.0, change=Change.ADD, node=str(node), zone=zones[node]) for node in range(NUM_NODES)]
    for turn in range(3):
        lost = [f"{turn}-{node}" if turn else str(node) for node in hit]
        events += [TraceEvent(at_s=600.0 * (turn + 1), change=Change.REMOVE, node=node) for node in lost]
        events += [
            TraceEvent(at_s=600.0 * (turn + 1) + 200, change=Change.ADD, node=f"{turn + 1}-{node}", zone=zones[node])
            for node in hit
        ]
    return Trace(name="outages", horizon_s=HOUR_S, events=tuple(events))


def simulation(policy: PolicyName) -> Simulation:
    about = experiment()
    return about.simulation(policy.value, make_policy(policy, Planner(about.profile, about.settings)))


def followed(runner: Simulation, trace: Trace) -> tuple[list[State], TraceRun]:
    """The states that a run rests in."""
    run = TraceRun(runner, TraceEvents.of(trace, runner.subject.timings.start_s))
    run.begin()
    states = []
    while not run.is_over:
        assert run.state is not None
        states.append(run.state)
        run.go_on()
    return states, run


@pytest.mark.parametrize("policy", STAYS)
def test_an_outage_of_a_zone_is_survived(policy: PolicyName) -> None:
    told, untold = (simulation(policy).run(outages(even, is_told=is_told)) for is_told in (True, False))
    assert told.fatal == 0
    assert sum(told.survived.values()) == 3
    if policy is not PolicyName.REDUNDANCY:  # whose whole rings hold every layer here, wherever their nodes are
        assert untold.fatal > 0
        assert told.samples > untold.samples


def test_bulks_of_one_zone_hurt_less() -> None:
    """Losses of several nodes at once, over seeds: with the same traces without zones, more of them are fatal."""
    runner = simulation(PolicyName.TEMPLATES)
    population = Population(nodes=NUM_NODES, zones=("a", "b"), arrival_s=300.0)
    fatal = {True: 0, False: 0}
    for seed in range(12):
        made = generate(ConstantRate(hourly=2.0, mean_bulk=3.0), population, HOUR_S, seed=seed, name=f"seed {seed}")
        blind = Trace(
            name=made.name,
            horizon_s=made.horizon_s,
            events=tuple(
                TraceEvent(at_s=event.at_s, change=event.change, node=event.node, notice_s=event.notice_s)
                for event in made.events
            ),
        )
        fatal[True] += runner.run(made).fatal
        fatal[False] += runner.run(blind).fatal
    assert fatal[True] < fatal[False] / 2


def test_redundancy_puts_neighbours_into_different_zones() -> None:
    """In the first plan, and after nodes came."""
    states, _ = followed(simulation(PolicyName.REDUNDANCY), outages(even))
    for state in (states[0], states[-1]):
        zones = {NodeId(node): zone for node, zone in enumerate(state.zones)}
        assert set(zones.values()) == {"0", "1"}
        for pipeline in state.plan.pipelines:
            assert conflicts([state.plan.node_of(stage.worker) for stage in pipeline.stages], zones) == 0


def test_what_zones_are_called_does_not_matter() -> None:
    """The same in other words is one state; and nodes of other zones make another one."""
    about = experiment()
    made = make_policy(PolicyName.TEMPLATES, Planner(profile(), about.settings))
    nodes = [NodeId(node) for node in range(NUM_NODES)]
    plan = made.with_planner(made.planner.with_zones({node: even(node) for node in nodes})).initial(nodes, 1).plan
    one, other, blind = (
        canonical(plan, nodes, zones=zones)[0]
        for zones in (
            {node: even(node) for node in nodes},
            {node: "yx"[node % 2] for node in nodes},
            None,
        )
    )
    assert one == other
    assert one != blind
    assert blind.zones == ()
    assert len(one.zones) == NUM_NODES


@pytest.mark.parametrize("policy", rest_in_proof(["redundancy", "templates", "adaptive"]))
def test_what_is_remembered_of_zones_changes_no_result(policy: str) -> None:
    about = experiment()
    made = make_policy(PolicyName(policy), Planner(about.profile, about.settings))
    population = Population(nodes=NUM_NODES, zones=("a", "b", "c"), arrival_s=300.0)
    seen = about.simulation(policy, made)
    traces = [
        generate(ConstantRate(hourly=4.0, mean_bulk=2.0), population, 0.5 * HOUR_S, seed=seed, name=str(seed))
        for seed in range(3)
    ]
    for trace in traces:
        seen.run(trace)
    fresh = about.simulation(policy, made, remembers=False).run(traces[0])
    assert seen.run(traces[0]) == about.simulation(policy, made).run(traces[0]) == fresh
    assert fresh.joins > 0
