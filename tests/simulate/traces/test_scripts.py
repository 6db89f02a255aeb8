"""Scripts: who is hit follows from the plan, what is written is read again, what cannot be is refused with its line."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planaria.plan.plan import Group, NodeId, Pipeline, Plan, Stage, WorkerId
from planaria.simulate.traces.generators import ConstantRate, Population, generate
from planaria.simulate.traces.script_format import read_script, write_script
from planaria.simulate.traces.scripts import (
    Clock,
    Script,
    ScriptClock,
    ScriptName,
    announced,
    built_in,
    busiest,
    numbered,
    thinned,
    zones_by_number,
)
from planaria.simulate.traces.tally import WARM_UP_STEPS
from planaria.simulate.traces.trace import HOUR_S, Change, Trace, TraceError, TraceEvent
from tests.proof import examples
from tests.runtime.run_folder.happenings import committed, plan_taken


def grid(num_pipelines: int, num_stages: int, devices_per_node: int = 1) -> Plan:
    """Each pipeline on nodes of its own, two layers a stage."""
    pipelines, worker = [], 0
    for _ in range(num_pipelines):
        stages = []
        for at in range(num_stages):
            stages.append(Stage(worker=WorkerId(worker), first_layer=2 * at, end_layer=2 * at + 2))
            worker += 1
        worker += -worker % devices_per_node
        pipelines.append(Pipeline(stages=tuple(stages)))
    groups = tuple(Group(layers=(layer,), size_bytes=1) for layer in range(2 * num_stages))
    return Plan(
        generation=1, num_layers=2 * num_stages, num_microbatches=8, devices_per_node=devices_per_node, groups=groups,
        pipelines=tuple(pipelines), routes=(), sync_epochs=(1,) * len(groups),
    )  # fmt: skip


def gone(script: Script) -> list[int]:
    return [int(e.node.removeprefix("node")) for e in script.trace.events if e.change is Change.REMOVE]


def test_who_is_hit_in_a_grid_of_four_pipelines() -> None:
    plan = grid(4, 4)
    assert gone(built_in(ScriptName.SINGLE, plan, 100.0)) == [5]
    assert gone(built_in(ScriptName.BURST_IN_STAGE, plan, 100.0)) == [1, 5]
    assert gone(built_in(ScriptName.BURST_IN_PIPELINE, plan, 100.0)) == [5, 6]
    assert len(gone(built_in(ScriptName.STEADY_LOSS, plan, 100.0))) == 8
    rejoin = built_in(ScriptName.LOSS_AND_REJOIN, plan, 100.0).trace.events[-2:]
    assert [(event.change, event.node) for event in rejoin] == [(Change.REMOVE, "node5"), (Change.ADD, "node16")]


@given(
    name=st.sampled_from(ScriptName),
    pipelines=st.integers(1, 6),
    stages=st.integers(1, 6),
    devices=st.integers(1, 3),
    least=st.integers(0, 40),
)
@settings(max_examples=examples(200), deadline=None)
def test_every_script_fits_its_plan(name: ScriptName, pipelines: int, stages: int, devices: int, least: int) -> None:
    plan = grid(pipelines, stages, devices)
    script = built_in(name, plan, 50.0, least_nodes=least)
    assert list(numbered(script.trace, plan.nodes).values()) == list(plan.nodes)
    hit = gone(script)
    assert hit, "something happens"
    assert len(set(hit)) == len(hit)
    assert set(hit) <= set(plan.nodes)
    assert len(plan.nodes) - len(hit) >= min(least, len(plan.nodes) - 1)
    last = script.trace.events[-1].at_s
    assert 0 < last < script.trace.horizon_s


@given(pipelines=st.integers(2, 6), stages=st.integers(1, 6))
@settings(max_examples=examples(50), deadline=None)
def test_a_burst_in_a_stage_takes_holders_of_one_layer_and_leaves_one(pipelines: int, stages: int) -> None:
    plan = grid(pipelines, stages)
    hit = gone(built_in(ScriptName.BURST_IN_STAGE, plan, 50.0))
    held = [{layer for stage in plan.stages() if stage.worker == node for layer in stage.layers} for node in hit]
    assert set.intersection(*held)
    assert len(hit) < pipelines


@given(pipelines=st.integers(2, 6), stages=st.integers(1, 6))
@settings(max_examples=examples(50), deadline=None)
def test_a_steady_loss_leaves_every_layer_an_owner(pipelines: int, stages: int) -> None:
    plan = grid(pipelines, stages)
    live = set(plan.nodes) - {NodeId(node) for node in gone(built_in(ScriptName.STEADY_LOSS, plan, 50.0))}
    owned = {layer for stage in plan.stages() if plan.node_of(stage.worker) in live for layer in stage.layers}
    assert owned == set(range(plan.num_layers))


# Files

STEPS = """{"planaria_trace": 1, "name": "two", "horizon_steps": 9}
{"at_step": 0, "change": "add", "node": "a"}
{"at_step": 0, "change": "add", "node": "b"}

{"at_step": 3.5, "change": "remove", "node": "b", "notice_steps": 2}
"""


def test_a_script_may_count_steps() -> None:
    read = read_script(STEPS, "two.jsonl").script
    assert read.clock is Clock.STEPS
    assert read.trace.horizon_s == 9
    assert read.trace.events[-1] == TraceEvent(at_s=3.5, change=Change.REMOVE, node="b", notice_s=2.0)
    assert read_script(write_script(read), "again").script == read


@pytest.mark.parametrize("name", ScriptName)
def test_a_built_in_script_is_a_trace(name: ScriptName) -> None:
    script = built_in(name, grid(3, 3), 60.0)
    assert read_script(write_script(script), "file").script == script


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"at_step": 3.5', '"at_step": -1', r"line 5: at_step = -1 is not a number of steps"),
        ('"at_step": 3.5', '"at_s": 3.5', r"line 5: .*at_s"),
        ('"horizon_steps": 9', '"horizon_steps": 0', r"line 1: horizon_steps = 0"),
        ('"planaria_trace": 1', '"planaria_trace": 2', r"line 1: version 2 .* reads 1"),
        ('"node": "b", "notice', '"node": "c", "notice', r"line 5: .*the node is not there"),
        ('"node": "b", "notice', '"node": "", "notice', r"line 5: the node has no name"),
    ],
)
def test_scripts_that_cannot_be_are_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read_script(STEPS.replace(old, new), "two.jsonl")


def test_steps_that_are_not_in_order_are_sorted_and_said() -> None:
    first, *others, last = STEPS.strip().splitlines()
    read = read_script("\n".join([first, last, *others]), "two.jsonl")
    assert read.script == read_script(STEPS, "two.jsonl").script
    assert read.repairs == ("line 3: it is earlier than line 2; the events were sorted by time",)


def test_events_after_the_last_step_are_said() -> None:
    read = read_script(STEPS.replace('"horizon_steps": 9', '"horizon_steps": 2'), "two.jsonl")
    assert read.script.trace.horizon_s == 3.5
    assert read.repairs == ("line 1: horizon_steps = 2 is before line 5, at 3.5; it ends there",)


# Parts


def events(*given: tuple[float, str, str]) -> tuple[TraceEvent, ...]:
    return tuple(TraceEvent(at_s=at_s, change=Change(change), node=node) for at_s, change, node in given)


def test_a_part_of_the_nodes_with_all_that_befalls_them() -> None:
    first = [(0.0, "add", node) for node in "abcd"]
    later = [(1.0, "remove", "a"), (2.0, "remove", "b"), (3.0, "add", "e"), (4.0, "add", "f"), (5.0, "add", "a")]
    trace = Trace(name="t", horizon_s=9.0, events=events(*first, *later))
    fewer = thinned(trace, 2)
    assert fewer.initial == ("a", "c")
    assert [(e.at_s, e.node) for e in fewer.events[2:]] == [(1, "a"), (3, "e"), (5, "a")]
    assert thinned(trace, 4) == trace


def test_the_busiest_part_has_most_events() -> None:
    population = Population(nodes=20, arrival_s=300.0)
    trace = generate(ConstantRate(hourly=0.5, mean_bulk=3.0), population, 12 * HOUR_S, seed=3, name="made")
    part = busiest(trace, HOUR_S)
    parts = [trace.window(60.0 * minute, HOUR_S) for minute in range((11 * 60) + 1)]
    most = max(sum(event.at_s > 0 for event in found.events) for found in parts if found.initial)
    assert sum(event.at_s > 0 for event in part.events) == most
    assert busiest(trace, 13 * HOUR_S) == trace


def test_removals_are_announced_where_they_are_not() -> None:
    given = built_in(ScriptName.SINGLE, grid(2, 2), 100.0)
    (removal,) = (event for event in announced(given, 5.0).trace.events if event.change is Change.REMOVE)
    assert removal.notice_s == 5.0
    assert announced(announced(given, 5.0), 9.0) == announced(given, 5.0)


# The clock


def test_seconds_count_from_the_last_step_of_the_warm_up() -> None:
    clock = ScriptClock(Clock.SECONDS)
    clock.note(committed(WARM_UP_STEPS - 1), 100.0)
    assert clock.at(101.0) is None
    clock.note(committed(WARM_UP_STEPS), 102.0)
    clock.note(committed(WARM_UP_STEPS + 1), 103.0)
    assert clock.at(105.5) == 3.5
    assert clock.left_s(5.0, 105.5) == 1.5


def test_steps_go_on_by_the_estimate_and_never_past_the_next_commit() -> None:
    clock = ScriptClock(Clock.STEPS)
    clock.note(plan_taken(1, "start"), 99.0)  # steps of 0.12 s
    clock.note(committed(WARM_UP_STEPS + 6), 100.0)
    assert clock.at(100.06) == pytest.approx(6.5)
    assert clock.left_s(6.75, 100.06) == pytest.approx(0.03)
    at = clock.at(200.0)
    assert at is not None
    assert 6.9 < at < 7


def test_nodes_get_the_zones_of_the_trace_by_their_numbers() -> None:
    """Who comes back has a new number, and may be in another zone."""
    events = (
        TraceEvent(at_s=0.0, change=Change.ADD, node="x", zone="a"),
        TraceEvent(at_s=0.0, change=Change.ADD, node="y"),
        TraceEvent(at_s=1.0, change=Change.REMOVE, node="x", zone="a"),
        TraceEvent(at_s=2.0, change=Change.ADD, node="z", zone="b"),
        TraceEvent(at_s=3.0, change=Change.ADD, node="x", zone="c"),
    )
    assert zones_by_number(Trace(name="zones", horizon_s=4.0, events=events)) == ("a", "not known", "b", "c")
    blind = tuple(TraceEvent(at_s=e.at_s, change=e.change, node=e.node) for e in events)
    assert zones_by_number(Trace(name="none", horizon_s=4.0, events=blind)) == ()
