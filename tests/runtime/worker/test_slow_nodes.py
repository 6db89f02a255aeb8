"""Slow nodes in virtual time: found, given less work, left out, tried again and restored, to the bit."""

from __future__ import annotations

import dataclasses
import random

import msgspec
import pytest

from planaria.protocol.messages.records import NodeLost, NodeReleased, NodeSpeed, PlanTaken, Recovered, StepCommitted
from planaria.protocol.planning import straggler_detection, straggler_policy
from planaria.protocol.thresholds import AGREEING_WINDOWS
from tests.proof import rest_in_proof
from tests.runtime.worker.cluster import Kill, Outcome, Slow, Visit, Weather
from tests.runtime.worker.schedules import Schedule, comings_and_goings, job_of
from tests.runtime.worker.test_cluster import Laboratory

STEADY = Weather(compute_s=1e-5, network_s=1e-5, control_s=1e-5, detect_s=1e-4)
SLOW_STEP, FAST_STEP = 4, 12


def slow_schedule(
    *slow: Slow,
    nodes: int = 5,
    steps: int = 24,
    smallest: int = 2,
    depth: int = 2,
    kills: tuple[Kill, ...] = (),
    visits: tuple[Visit, ...] = (),
) -> Schedule:
    job = job_of(nodes=nodes, depth=depth, steps=steps, microbatches=8, smallest=smallest)
    weather = dataclasses.replace(STEADY, slow_nodes=slow)
    return Schedule(seed=3, job=job, kills=kills, visits=visits, weather=weather, stop_at_s=None)


def run(laboratory: Laboratory, schedule: Schedule) -> Outcome:
    source = msgspec.structs.replace(schedule.job.data, source=str(laboratory.source))
    return laboratory.run(dataclasses.replace(schedule, job=msgspec.structs.replace(schedule.job, data=source)))


def step_s(outcome: Outcome, steps: range) -> float:
    """Seconds of the steps, on average."""
    took = {record.step: record.duration_s for record in outcome.of(StepCommitted)}
    return sum(took[step] for step in steps) / len(steps)


@pytest.mark.parametrize("node", [0, 4])
def test_a_node_of_half_speed_gets_less_to_do_and_is_restored(node: int, laboratory: Laboratory) -> None:
    """Six nodes, all of which two pipelines of three need."""
    slow = Slow(node=node, factor=2.0, step=SLOW_STEP, until=FAST_STEP)
    outcome = run(laboratory, slow_schedule(slow, nodes=6, smallest=3, depth=6))
    slower, faster = outcome.of(NodeSpeed)
    assert (slower.node, slower.step, slower.speed) == (node, SLOW_STEP + AGREEING_WINDOWS - 1, 0.5)
    assert (faster.node, faster.step, faster.speed) == (node, FAST_STEP + AGREEING_WINDOWS - 1, 1.0)
    plans = outcome.of(PlanTaken)
    slow_plan = [plan for plan in plans if plan.step < FAST_STEP][-1]
    assert slow_plan.generation > plans[0].generation
    before, during = step_s(outcome, range(2, SLOW_STEP)), step_s(outcome, range(SLOW_STEP + 5, FAST_STEP))
    suffered, after = step_s(outcome, range(SLOW_STEP, SLOW_STEP + 2)), step_s(outcome, range(FAST_STEP + 6, 25))
    assert during < 0.85 * suffered
    assert during == pytest.approx(slow_plan.estimated_step_s, rel=0.1)
    assert after == pytest.approx(before, rel=0.05)
    assert not outcome.of(NodeLost)


@pytest.mark.proof
def test_a_very_slow_node_is_left_out_tried_again_and_restored(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = 6
    monkeypatch.setattr(straggler_policy, "FIRST_REST_STEPS", rest)
    until = 20
    outcome = run(laboratory, slow_schedule(Slow(node=1, factor=50.0, step=SLOW_STEP, until=until), steps=50))
    slower, faster = outcome.of(NodeSpeed)
    assert (slower.speed, faster.speed) == (0.05, 1.0)
    used = {plan.step: 1 in _nodes(plan) for plan in outcome.of(PlanTaken) if plan.purpose != "warm up"}
    without, tried = [s for s in used if not used[s]], [s for s in used if used[s] and s > slower.step]
    assert without[0] == slower.step + 2, "beside a step it has handed over its state"
    assert tried[0] == without[0] - 1 + rest + 1, "a trial"
    assert without[1] == tried[0] - 1 + straggler_policy.TRIAL_STEPS + 1, "it is slow still"
    assert tried[1] == without[1] - 1 + 2 * rest + 1, "so the next trial comes later"
    assert until < tried[1] < faster.step <= tried[1] + straggler_policy.TRIAL_STEPS
    assert used[max(used)]
    before, during = step_s(outcome, range(2, SLOW_STEP)), step_s(outcome, range(without[0], tried[0] - 1))
    assert during < 1.5 * before
    assert step_s(outcome, range(45, 51)) == pytest.approx(before, rel=0.05)


def _nodes(plan: PlanTaken) -> set[int]:
    return {worker for stages in plan.pipelines for worker, _, _ in stages}


def test_a_node_that_rests_takes_the_place_of_one_that_dies(laboratory: Laboratory) -> None:
    """f is held: without it, four nodes are two pipelines of two, and one of the four dies."""
    slow = Slow(node=4, factor=50.0, step=2)
    schedule = slow_schedule(slow, kills=(Kill(node=2, at="forward", step=12),))
    outcome = run(laboratory, schedule)
    plans = outcome.of(PlanTaken)
    assert any(4 not in _nodes(plan) for plan in plans)
    assert _nodes(plans[-1]) == {0, 1, 3, 4}
    (recovered,) = outcome.of(Recovered)
    assert recovered.recovery.lost_nodes == (2,)


def test_a_node_that_rests_may_die_or_leave(laboratory: Laboratory) -> None:
    slow = tuple(Slow(node=node, factor=50.0, step=2) for node in (4, 5))
    outcome = run(
        laboratory,
        slow_schedule(
            *slow,
            nodes=7,
            kills=(Kill(node=4, at="after StepCommitted", nth=10),),
            visits=(Visit(node=5, after="StepCommitted", nth=11, grace_s=1e3),),
        ),
    )
    resting = [plan for plan in outcome.of(PlanTaken) if not {4, 5} & _nodes(plan)]
    assert resting
    assert [record.node for record in outcome.of(NodeLost)] == [4]
    assert [record.node for record in outcome.of(NodeReleased)] == [5]
    assert not outcome.of(Recovered) or all(not r.recovery.microbatches_rerun for r in outcome.of(Recovered))


def test_nodes_of_one_speed_are_left_alone(laboratory: Laboratory) -> None:
    outcome = run(laboratory, slow_schedule(Slow(node=0, factor=1.0, step=1)))
    assert not outcome.of(NodeSpeed)
    assert len(outcome.of(PlanTaken)) == 1


@pytest.mark.parametrize("seed", rest_in_proof(range(12)))
def test_new_plans_at_any_time(seed: int, laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise is taken for speed after every step, nodes rest for a step or two, and die, come and go meanwhile."""
    monkeypatch.setattr(straggler_detection, "AGREEING_WINDOWS", 1)
    monkeypatch.setattr(straggler_detection, "MOST_AGREEING_WINDOWS", 2)
    monkeypatch.setattr(straggler_detection, "LEAST_COMPUTE_S", 0.0)
    monkeypatch.setattr(straggler_policy, "FIRST_REST_STEPS", 1)
    monkeypatch.setattr(straggler_policy, "TRIAL_STEPS", 2)
    monkeypatch.setattr(straggler_policy, "WORTH_RESTING", 1.0)
    plain = comings_and_goings(seed, str(laboratory.source))
    draw = random.Random(seed)
    train = msgspec.structs.replace(plain.job.train, steps=draw.randint(6, 10))
    laboratory.run(
        dataclasses.replace(
            plain,
            job=msgspec.structs.replace(plain.job, train=train),
            kills=plain.kills[: draw.randint(0, 2)],
            weather=dataclasses.replace(plain.weather, measures_noise=True),
        )
    )
