"""Devices that are lost alone over a trace: their nodes train on, and with all of them when they come back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planaria.job.registry import PolicyName
from planaria.plan.plan import NodeId, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.policy.registry import make_policy
from planaria.simulate.episode.situation import canonical
from planaria.simulate.results import RunResult
from planaria.simulate.traces.lone_devices import with_lone_devices
from planaria.simulate.traces.trace import HOUR_S, Change, DeviceChange, DeviceEvent, Trace, TraceEvent
from tests.proof import rest_in_proof
from tests.simulate.test_simulation import experiment

NODES, DEVICES = 4, 4
SETTINGS = PlannerSettings(
    num_microbatches=96,
    fault_tolerance=1,
    num_nodes=NODES,
    devices_per_node=DEVICES,
    devices_per_stage=DEVICES,
    min_nodes=1,
)


def device(at_s: float, change: DeviceChange, node: int, number: int) -> DeviceEvent:
    return DeviceEvent(at_s=at_s, change=change, node=str(node), device=number)


def lost(at_s: float, node: int, number: int) -> DeviceEvent:
    return device(at_s, DeviceChange.LOST, node, number)


def trace(*devices: DeviceEvent, gone: tuple[float, int] | None = None) -> Trace:
    """All nodes from the beginning on; one goes, where that is given."""
    nodes = [TraceEvent(at_s=0.0, change=Change.ADD, node=str(node)) for node in range(NODES)]
    if gone is not None:
        nodes.append(TraceEvent(at_s=gone[0], change=Change.REMOVE, node=str(gone[1])))
    return Trace(name="devices", horizon_s=HOUR_S, events=tuple(nodes), device_events=devices)


def run_of(which: Trace, policy: str = "templates", settings: PlannerSettings = SETTINGS) -> RunResult:
    (run,) = experiment(settings=settings, wants_timeline=True).run(policy, [which])
    return run


@pytest.mark.parametrize(("policy", "of_stage"), [("templates", 4), ("templates", 1), ("adaptive", 0)])
def test_a_device_lost_alone_costs_less_than_its_node(policy: str, of_stage: int) -> None:
    settings = replace(SETTINGS, devices_per_stage=of_stage)
    none = run_of(trace(), policy, settings)
    one = run_of(trace(lost(1000.0, 2, 1)), policy, settings)
    node = run_of(trace(gone=(1000.0, 2)), policy, settings)
    assert none.samples > one.samples > node.samples
    assert (one.losses, one.device_losses, sum(one.survived.values())) == (0, 1, 1)
    assert sum(one.seconds_by.values()) == pytest.approx(one.seconds)
    assert one.timeline[-1][2] < none.timeline[-1][2]


def test_with_the_device_back_steps_take_what_they_took() -> None:
    whole = run_of(trace(lost(1000.0, 2, 1), device(2000.0, DeviceChange.JOINED, 2, 1)))
    at_s, rates = [at for at, _, _ in whole.timeline], [rate for _, _, rate in whole.timeline]
    assert rates[0] == rates[-1] > min(rates)
    assert at_s[-1] >= 2000.0 + experiment().timings.start_s
    assert whole.samples > run_of(trace(lost(1000.0, 2, 1))).samples


def test_the_last_device_of_a_node_is_the_node() -> None:
    gone = run_of(trace(*(lost(1000.0 + number, 2, number) for number in range(DEVICES))))
    node = run_of(trace(gone=(1003.0, 2)))
    assert gone.device_losses == DEVICES
    assert gone.timeline[-1][1] == node.timeline[-1][1] == NODES - 1
    assert gone.timeline[-1][2] == node.timeline[-1][2]


def test_what_goes_before_the_job_trains_is_gone_when_it_does() -> None:
    early = run_of(trace(lost(0.0, 2, 1)))
    assert early.device_losses == 1
    assert early.timeline[-1][2] == run_of(trace(lost(1000.0, 2, 1))).timeline[-1][2]


@pytest.mark.parametrize(
    ("policy", "of_stage"),
    rest_in_proof([pytest.param("adaptive", 0), pytest.param("templates", 2), pytest.param("reroute", 1)]),
)
def test_what_is_remembered_changes_no_result(policy: str, of_stage: int) -> None:
    settings = replace(SETTINGS, devices_per_node=2, devices_per_stage=min(2, of_stage))
    about = experiment(settings=settings)
    made = make_policy(PolicyName(policy), about.planner)
    fallen = [
        with_lone_devices(trace(gone=(500.0, seed)).window(0.0, 900.0), 2, 6.0, 120.0, seed=seed) for seed in range(2)
    ]
    seen = about.simulation(policy, made)
    for one in fallen:
        seen.run(one)
    for one in fallen:
        fresh = about.simulation(policy, made, remembers=False).run(one)
        assert seen.run(one) == fresh
        assert fresh.device_losses > 0


def test_canonical_names_keep_which_devices_are_lost() -> None:
    policy = make_policy(PolicyName.TEMPLATES, experiment(settings=SETTINGS).planner)
    plan = policy.initial([NodeId(node) for node in range(NODES)], 1).plan
    state, order = canonical(plan, plan.nodes, lost_devices=[WorkerId(2 * DEVICES + 1)])
    (worker,) = state.lost_devices
    assert divmod(worker, DEVICES) == (order.index(NodeId(2)), 1)
    assert not state.twin(3)


def test_as_many_devices_go_alone_as_are_asked_for_and_come_back() -> None:
    long = Trace(name="long", horizon_s=200 * HOUR_S, events=trace().events)
    fallen = with_lone_devices(long, DEVICES, 0.05, 600.0, seed=1)
    gone = [event for event in fallen.device_events if event.change is DeviceChange.LOST]
    assert len(gone) == pytest.approx(NODES * DEVICES * 200 * 0.05, rel=0.2)
    assert abs(len(fallen.device_events) - 2 * len(gone)) <= NODES * DEVICES
    assert with_lone_devices(long, DEVICES, 0.05, 600.0, seed=1) == fallen
    for_good = with_lone_devices(long, DEVICES, 5.0, None, seed=1)
    assert len(for_good.device_events) == NODES * DEVICES
