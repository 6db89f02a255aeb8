"""The macro simulation comes to what the simulation of every message comes to, on small random cases."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from planaria.job.registry import PolicyName
from planaria.plan.plan import NodeId, ScheduleKind
from planaria.policy.planner import Planner
from planaria.policy.registry import make_policy
from planaria.protocol.messages.records import AnyRecord, PlanTaken, Recovered, Restored, Waiting
from planaria.simulate.experiment import Experiment
from planaria.simulate.results import RunResult
from planaria.simulate.timings import Timings
from planaria.simulate.trace_events import TraceEvents
from planaria.simulate.trace_run import TraceRun
from planaria.simulate.traces.trace import Change, Trace, TraceEvent
from tests.proof import batches
from tests.testkit.cluster.cluster import Cluster
from tests.testkit.schedules.faults import Fault, FaultKind
from tests.testkit.schedules.schedule import Schedule
from tests.testkit.schedules.setup import Setup
from tests.testkit.schedules.weather import Weather

WEATHER = Weather(compute_s=1e-4, network_s=1e-5, control_s=1e-5, detect_s=1e-3, spread=0.1, is_as_profiled=True)


@dataclass(frozen=True, kw_only=True)
class Case:
    setup: Setup
    kills: tuple[tuple[float, tuple[int, ...]], ...]
    joins: tuple[float, ...]


def case(seed: int) -> Case:
    """A job, and disturbances so far from each other that each finds it undisturbed."""
    draw = Random(seed)
    min_nodes, tolerance = draw.randint(1, 2), draw.randint(1, 2)
    num_nodes = min_nodes * (tolerance + 1) + draw.randint(1, 3)
    policy = draw.choice([*PolicyName])
    setup = Setup(
        num_layers=draw.randint(3, 6),
        is_tied=draw.random() < 0.5,
        is_large=False,
        num_nodes=num_nodes,
        devices_per_node=1,
        fault_tolerance=tolerance,
        min_nodes=min_nodes,
        num_microbatches=max(num_nodes + 1, 8),
        steps=45,
        checkpoint_every=5,
        order=draw.choice([ScheduleKind.ONE_F_ONE_B, ScheduleKind.EAGER_ONE_F_ONE_B]),
        waits=True,
        policy=policy,
        num_zones=Random(f"zones of {seed}").choice([0, 2, 3]),
    )
    step_s = make_policy(setup.policy, Planner(setup.profile, setup.planner)).initial(
        [NodeId(n) for n in range(num_nodes)], 1
    )
    gap_s = 9.3 * step_s.step_time_s
    alive, started = list(range(num_nodes)), num_nodes
    kills: list[tuple[float, tuple[int, ...]]] = []
    joins: list[float] = []
    for turn in range(1, 4):
        at_s = 0.03 + gap_s * (turn + 0.3 * draw.random())
        if draw.random() < 0.25:
            joins.append(at_s)
            alive.append(started)
            started += 1
            continue
        lost = tuple(draw.sample(alive, min(len(alive), draw.choice([1, 1, 1, min(2, tolerance)]))))
        if len(lost) >= len(alive):
            break
        kills.append((at_s, lost))
        alive = [node for node in alive if node not in lost]
    return Case(setup=setup, kills=tuple(kills), joins=tuple(joins))


class Recording(Cluster):
    """A cluster that keeps what is published."""

    def __init__(self, schedule: Schedule) -> None:
        self.records: list[AnyRecord] = []
        super().__init__(schedule)

    def publish(self, record: AnyRecord, *, again: bool) -> None:
        self.records.append(record)
        super().publish(record, again=again)


def by_messages(which: Case, seed: int) -> Recording:
    faults = [Fault(kind=FaultKind.KILL, at="start", delay_s=at_s, nodes=lost) for at_s, lost in which.kills] + [
        Fault(kind=FaultKind.JOIN, at="start", delay_s=at_s) for at_s in which.joins
    ]
    cluster = Recording(Schedule(seed=seed, setup=which.setup, weather=WEATHER, faults=tuple(faults)))
    cluster.run()
    return cluster


def by_macro(which: Case) -> tuple[RunResult, TraceRun]:
    setup = which.setup
    events = [
        TraceEvent(at_s=0.0, change=Change.ADD, node=str(node), zone=setup.zone_of(node))
        for node in range(setup.num_nodes)
    ]
    later = [TraceEvent(at_s=at_s, change=Change.REMOVE, node=str(n)) for at_s, lost in which.kills for n in lost]
    later += [
        TraceEvent(at_s=at_s, change=Change.ADD, node=str(node), zone=setup.zone_of(node))
        for node, at_s in enumerate(which.joins, setup.num_nodes)
    ]
    trace = Trace(name="case", horizon_s=1e6, events=(*events, *sorted(later, key=lambda event: event.at_s)))
    experiment = Experiment(
        profile=setup.profile,
        settings=setup.planner,
        samples=float(setup.steps * setup.num_microbatches),
        checkpoint_every=setup.checkpoint_every,
        timings=Timings(detection_s=1e-3, decision_s=1e-3, change_s=1e-4, start_s=0.03, restart_s=0.0),
        num_parts=4,
        by_number=True,
    )
    simulation = experiment.simulation(
        setup.policy.value, make_policy(setup.policy, Planner(setup.profile, setup.planner))
    )
    run = TraceRun(simulation, TraceEvents.of(trace, 0.03))
    run.begin()
    while not run.is_over:
        run.go_on()
    return run.result(), run


def layouts(pipelines: Any) -> Counter[tuple[tuple[int, int], ...]]:
    """Pipelines without the workers' names."""
    return Counter(tuple((first, end) for _, first, end in pipeline) for pipeline in pipelines)


def shapes(run: TraceRun) -> Counter[tuple[tuple[int, int], ...]]:
    assert run.state is not None
    plan = run.state.plan
    return layouts([[(s.worker, s.first_layer, s.end_layer) for s in p.stages] for p in plan.pipelines])


@pytest.mark.parametrize("seeds", batches(range(22), size=10, kept=2), ids=str)
def test_recoveries_and_plans_are_those_of_the_messages(seeds: range) -> None:
    survived = 0
    for seed in seeds:
        which = case(seed)
        cluster = by_messages(which, seed)
        result, run = by_macro(which)
        taken = [record for record in cluster.records if isinstance(record, PlanTaken)]
        purposes = Counter(record.purpose for record in taken)
        where = f"seed {seed}: {which}"
        recovered = sum(isinstance(record, Recovered) for record in cluster.records)
        assert sum(result.survived.values()) == recovered, where
        assert result.fatal == sum(isinstance(record, Restored) for record in cluster.records), where
        assert result.waits == sum(isinstance(record, Waiting) for record in cluster.records), where
        for purpose in ("warm up", "reconfigure", "restore"):
            assert result.plans.get(purpose, 0) == purposes[purpose], f"{purpose}, {where}"
        if not result.waits:
            # What adaptive weighs depends on what transitions took, and the messages' times are others.
            if which.setup.policy is not PolicyName.ADAPTIVE:
                assert shapes(run) == layouts(taken[-1].pipelines), where
            assert cluster.server.machine.step - 1 == which.setup.steps, where
            # With samples dropped, as many samples take more steps.
            assert result.steps == which.setup.steps or which.setup.policy is PolicyName.DROP, where
        survived += recovered
    assert survived > len(seeds)
