"""Speeds: who is judged slow, from measurements alone; who is not, however the host crowds; and that nothing flaps."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from planaria.plan.plan import NodeId, Plan, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.policy.planner import Planner
from planaria.policy.templates import TemplatesPolicy
from planaria.protocol.messages.records import NodeSpeed
from planaria.protocol.planning.straggler_detection import ON_REAL_HOSTS, NodeSpeeds, SpeedEvidence
from planaria.protocol.thresholds import AGREEING_WINDOWS, REMEMBERED_WINDOWS, SLOWER_FACTOR, SPEED_GRAIN
from tests.plan.profiles import uniform_profile

NODES = 6
EXPECTED_S = {WorkerId(worker): 0.1 + 0.01 * worker for worker in range(NODES)}


def plan_of(num_nodes: int = NODES, devices: int = 1) -> Plan:
    settings = PlannerSettings(
        num_microbatches=num_nodes * 2,
        fault_tolerance=1,
        num_nodes=num_nodes,
        devices_per_node=devices,
        min_nodes=1,
    )
    return (
        TemplatesPolicy.of(Planner(uniform_profile(8), settings)).initial([NodeId(n) for n in range(num_nodes)], 1).plan
    )


PLAN = plan_of()


@pytest.fixture
def speeds() -> NodeSpeeds:
    """Six nodes under a plan whose first step is over."""
    judge = NodeSpeeds()
    judge.expect(PLAN, EXPECTED_S)
    judge.committed(1, EXPECTED_S)
    return judge


def took(slowness: Mapping[int, float], everybody: float = 1.0) -> dict[WorkerId, float]:
    return {worker: s * everybody * slowness.get(worker, 1.0) for worker, s in EXPECTED_S.items()}


def run(speeds: NodeSpeeds, steps: range, slowness: Callable[[int], Mapping[int, float]]) -> list[NodeSpeed]:
    return [news for step in steps for news in speeds.committed(step, took(slowness(step)))]


@pytest.mark.parametrize(("factor", "speed"), [(2.0, 0.5), (5.0, 0.2), (100.0, 0.05)])
def test_a_slow_node_is_found_and_found_to_be_fast_again(factor: float, speed: float, speeds: NodeSpeeds) -> None:
    news = run(speeds, range(2, 40), lambda step: {3: factor} if 5 <= step < 20 else {})
    assert news == [
        NodeSpeed(node=3, step=5 + AGREEING_WINDOWS - 1, speed=speed, before=1.0, steps=AGREEING_WINDOWS),
        NodeSpeed(node=3, step=20 + AGREEING_WINDOWS - 1, speed=1.0, before=speed, steps=AGREEING_WINDOWS),
    ]
    assert speeds.known == {}


def test_what_slows_everybody_says_nothing_of_a_node(speeds: NodeSpeeds) -> None:
    """A profile that is off, a host that is oversubscribed."""
    for step in range(2, 30):
        assert not speeds.committed(step, took({}, everybody=1.0 + step))
    assert not speeds.known


def test_some_slow_steps_are_chance(speeds: NodeSpeeds) -> None:
    assert not run(speeds, range(2, 60), lambda step: {step % NODES: 30.0} if step % 5 < AGREEING_WINDOWS - 1 else {})


def test_half_of_the_nodes_may_be_slow(speeds: NodeSpeeds) -> None:
    run(speeds, range(2, 10), lambda step: {0: 2.0, 2: 2.0, 4: 2.0})
    assert speeds.known == {0: 0.5, 2: 0.5, 4: 0.5}


def test_of_two_nodes_the_slower_is_slow() -> None:
    speeds = NodeSpeeds()
    speeds.expect(plan_of(2), {WorkerId(0): 0.1, WorkerId(1): 0.1})
    for step in range(1, 10):
        speeds.committed(step, {WorkerId(0): 0.2, WorkerId(1): 0.1})
    assert speeds.known == {0: 0.5}


def test_a_node_is_as_slow_as_its_slowest_device() -> None:
    speeds = NodeSpeeds()
    expected = {WorkerId(worker): 0.1 for worker in range(4)}
    speeds.expect(plan_of(2, devices=2), expected)
    for step in range(1, 10):
        speeds.committed(step, expected | {WorkerId(3): 0.4})
    assert speeds.known == {1: 0.25}


def test_the_first_step_of_a_plan_is_not_judged(speeds: NodeSpeeds) -> None:
    for step in range(2, 40):
        speeds.expect(PLAN, EXPECTED_S)
        assert not speeds.committed(step, took({1: 9.0}))


def test_measurements_count_on_under_another_plan(speeds: NodeSpeeds) -> None:
    """They are held against what that plan expects."""
    run(speeds, range(2, 2 + AGREEING_WINDOWS - 1), lambda step: {1: 2.0})
    twice = {worker: 2 * seconds for worker, seconds in EXPECTED_S.items()}
    speeds.expect(PLAN, twice)
    speeds.committed(10, twice)
    (news,) = speeds.committed(11, twice | {WorkerId(1): 2 * twice[WorkerId(1)]})
    assert (news.node, news.speed) == (1, 0.5)


def test_nobody_is_judged_where_one_did_not_measure(speeds: NodeSpeeds) -> None:
    for step in range(2, 20):
        assert not speeds.committed(step, took({1: 5.0}) | {WorkerId(2): 0.0})


def test_short_steps_and_small_shares_say_nothing(speeds: NodeSpeeds) -> None:
    for step in range(2, 20):
        assert not speeds.committed(step, took({1: 5.0}, everybody=1e-3))
    small = EXPECTED_S | {WorkerId(1): 0.001}
    speeds.expect(PLAN, small)
    for step in range(20, 40):
        assert not speeds.committed(step, small | {WorkerId(1): 0.01}), "nobody waits for it"


def test_a_node_that_changes_often_is_believed_more_slowly(speeds: NodeSpeeds) -> None:
    """Slow for some steps, fast for as many, for long: ever fewer plans are made of it."""
    news = run(speeds, range(2, 500), lambda step: {1: 2.0} if step // 8 % 2 else {})
    assert 2 <= len(news) <= 500 // 8 // 3, "a third of the changes that there were"


def test_one_that_was_quiet_for_long_is_believed_at_once_again(speeds: NodeSpeeds) -> None:
    run(speeds, range(2, 60), lambda step: {1: 2.0} if step // 8 % 2 else {})
    run(speeds, range(60, 60 + 2 * REMEMBERED_WINDOWS), lambda step: {})
    begin = 60 + 2 * REMEMBERED_WINDOWS
    (news,) = run(speeds, range(begin, begin + 20), lambda step: {1: 2.0})
    assert news.step == begin + AGREEING_WINDOWS - 1


def test_a_node_that_is_gone_is_forgotten(speeds: NodeSpeeds) -> None:
    run(speeds, range(2, 10), lambda step: {1: 2.0})
    assert speeds.forget(NodeId(1))
    assert not speeds.forget(NodeId(0))
    assert not speeds.known


@given(seed=st.integers(0, 2**32))
def test_noise_within_the_factor_is_never_news(seed: int) -> None:
    draw = random.Random(seed)
    speeds = NodeSpeeds()
    speeds.expect(PLAN, EXPECTED_S)
    root = SLOWER_FACTOR**0.5
    for step in range(1, 60):
        assert not speeds.committed(step, took({n: draw.uniform(1 / root, root) * 0.999 for n in range(NODES)}))


@given(seed=st.integers(0, 2**32), factor=st.floats(2.0, 20.0))
@example(seed=2559, factor=5.0625)
def test_a_slow_node_is_found_through_noise(seed: int, factor: float) -> None:
    """As exactly as the noise allows, which is in its measurement and in the usual one; and then to the grain."""
    draw = random.Random(seed)
    speeds = NodeSpeeds()
    speeds.expect(PLAN, EXPECTED_S)
    news: list[NodeSpeed] = []
    for step in range(1, 2 + AGREEING_WINDOWS):
        noise = {node: draw.uniform(0.9, 1.1) for node in range(NODES)}
        news += speeds.committed(step, took({node: noise[node] * (factor if node == 2 else 1) for node in noise}))
    (found,) = news
    assert found.node == 2
    assert 0.9 / 1.1 / factor - SPEED_GRAIN / 2 <= found.speed + 1e-9
    assert found.speed - 1e-9 <= 1.1 / 0.9 / factor + SPEED_GRAIN / 2


def test_an_idle_healthy_job_of_short_steps_has_no_slow_nodes() -> None:
    """Ten milliseconds a step, on cores that the kernel gives to somebody else for some milliseconds now and then, and
    for some steps in a row."""
    draw = random.Random(7)
    told: dict[float, int] = {}
    for window_s in (0.0, ON_REAL_HOSTS.window_s):
        speeds = NodeSpeeds(SpeedEvidence(window_s=window_s))
        speeds.expect(PLAN, EXPECTED_S)
        slow_until = [0] * NODES
        told[window_s] = 0
        for step in range(1, 2000):
            for node in range(NODES):
                if draw.random() < 0.003:
                    slow_until[node] = step + draw.randint(1, 6)
            slowness = {node: 2.5 for node in range(NODES) if step < slow_until[node]}
            told[window_s] += len(speeds.committed(step, took(slowness, everybody=0.06)))
    assert told[0.0] > 10, "single steps do tell of it"
    assert told[ON_REAL_HOSTS.window_s] == 0


def test_of_short_steps_several_together_tell_of_a_slow_node() -> None:
    speeds = NodeSpeeds(ON_REAL_HOSTS)
    speeds.expect(PLAN, EXPECTED_S)
    (news,) = run_short(speeds, range(1, 200), lambda step: {3: 2.0} if step > 20 else {})
    assert (news.node, news.speed) == (3, 0.5)
    assert news.step > 20 + AGREEING_WINDOWS * ON_REAL_HOSTS.window_s / 0.02
    (back,) = run_short(speeds, range(200, 400), lambda step: {})
    assert (back.node, back.speed) == (3, 1.0)


def run_short(speeds: NodeSpeeds, steps: range, slowness: Callable[[int], Mapping[int, float]]) -> list[NodeSpeed]:
    return [news for step in steps for news in speeds.committed(step, took(slowness(step), everybody=0.06))]


def test_a_node_is_fast_again_only_far_above_where_it_became_slow(speeds: NodeSpeeds) -> None:
    run(speeds, range(2, 10), lambda step: {1: 1.5})
    assert speeds.known == {1: 0.65}
    assert not run(speeds, range(10, 40), lambda step: {1: 1.0 / 0.84}), "not slow enough to be called so, were it new"
    (news,) = run(speeds, range(40, 50), lambda step: {})
    assert news.speed == 1.0


def test_how_long_speeds_last_is_known_from_the_last_time(speeds: NodeSpeeds) -> None:
    assert speeds.lasts_steps(1) is None
    run(speeds, range(2, 10), lambda step: {1: 2.0})
    run(speeds, range(10, 30), lambda step: {})
    assert speeds.lasts_steps(30) is None, "it was slow once"
    told = run(speeds, range(30, 60), lambda step: {1: 2.0})
    assert speeds.lasts_steps(told[0].step) == 8
    assert speeds.lasts_steps(told[0].step + 20) == 20, "they have lasted longer by now"
