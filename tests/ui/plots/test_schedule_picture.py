"""Pictures: every worker has a row, every microbatch a cell, and the SVG is well formed."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import msgspec
import pytest

from planaria.estimate.step_time import simulate
from planaria.job.registry import PolicyName
from planaria.plan.plan import NodeId, ScheduleKind, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.planner.instantiation.instantiate import initial_plan
from planaria.planner.templates.templates import make_templates
from planaria.policy.planner import Planner
from planaria.policy.registry import make_policy
from planaria.ui.plots.cells import CellKind, cells, microbatches, rows, tick_s
from planaria.ui.plots.schedule_picture import svg, terminal
from tests.plan.profiles import uniform_profile
from tests.planner.test_tensor_stages import UNEVEN, first

PROFILE = uniform_profile(6)
SETTINGS = PlannerSettings(num_microbatches=8, fault_tolerance=1, num_nodes=5, devices_per_node=1, min_nodes=2)
NODES = [NodeId(n) for n in range(5)]
PLAN = initial_plan(PROFILE, make_templates(PROFILE, SETTINGS), SETTINGS, NODES, 1)
TIMELINE = simulate(PLAN, PROFILE)


def test_pieces_of_a_backward_are_one_cell() -> None:
    boxes = cells(TIMELINE.spans[WorkerId(0)])
    backwards = [box.number for box in boxes if box.kind is CellKind.BACKWARD]
    assert backwards == [0, 1, 2, 3, 4]
    last = [box for box in boxes if box.kind is CellKind.BACKWARD][-1]
    assert abs(last.end_s - last.start_s - 2 * 0.020) < 1e-9


def test_text_has_a_row_a_worker_and_keeps_its_width() -> None:
    for width in (60, 100, 160):
        text = terminal(TIMELINE, PLAN, width)
        assert max(map(len, text.splitlines())) <= width
        rows = [line for line in text.splitlines() if "│" in line]
        assert [row.split("│")[0].split() for row in rows] == [
            ["node", "0", "layers", "0-1"],
            ["node", "1", "layers", "2-3"],
            ["node", "2", "layers", "4-5"],
            ["node", "3", "layers", "0-2"],
            ["node", "4", "layers", "3-5"],
        ]
    assert "pipeline 1: 3 microbatches" in text
    assert rows[4].split("│")[1].lstrip().startswith("5░")


@pytest.mark.parametrize("is_shared", [False, True])
def test_the_devices_of_a_stage_are_rows_of_one_pipeline(is_shared: bool) -> None:
    settings = replace(UNEVEN, share_microbatches=is_shared)
    plan = first(make_policy(PolicyName.TEMPLATES, Planner(uniform_profile(8), settings)), settings)
    found = rows(plan)
    assert [(at, number) for at, (number, _) in enumerate(found) if number is not None] == [(0, 0), (4, 1)]
    assert [worker for _, worker in found] == list(range(8))
    assert microbatches(plan) == [5, 5]


def test_painted_text_is_as_wide_and_has_the_same_numbers() -> None:
    plain = terminal(TIMELINE, PLAN, 100)
    painted = terminal(TIMELINE, PLAN, 100, paint=lambda kind, text: f"<{kind.value[0]}{text}>")
    assert "░" not in painted
    rows, coloured = ([line for line in text.splitlines() if "│" in line] for text in (plain, painted))
    for row, cells_of_row in zip(rows, coloured, strict=True):
        stripped = re.sub(r"<[fbs]|>", "", cells_of_row)
        assert stripped.rstrip() == re.sub("[░▓≈]", " ", row).rstrip()
        assert cells_of_row.count("<f") == cells_of_row.count("<b")


def test_svg_is_well_formed_and_complete() -> None:
    text = svg(TIMELINE, PLAN)
    root = ElementTree.fromstring(text)
    titles = [t.text or "" for t in root.iter("{http://www.w3.org/2000/svg}title")]
    assert sum(t.startswith("forward") for t in titles) == 5 * 3 + 3 * 2
    assert sum(t.startswith("backward") for t in titles) == 5 * 3 + 3 * 2
    assert any(t.startswith("sync") for t in titles)
    words = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "node 4 layers 3-5" in words
    assert "ms" in words
    assert svg(TIMELINE, PLAN) == text


def test_ticks_are_round_numbers() -> None:
    assert [round(tick_s(time, 10), 9) for time in (1.0, 0.34, 0.0421, 7.0)] == [0.1, 0.05, 0.005, 1.0]


SPLIT = msgspec.structs.replace(PLAN, schedule=ScheduleKind.ZERO_BUBBLE_H1)
SPLIT_TIMELINE = simulate(SPLIT, PROFILE)


def test_weight_gradients_that_are_apart_have_cells_of_their_own() -> None:
    boxes = cells(SPLIT_TIMELINE.spans[WorkerId(2)])
    for kind in (CellKind.FORWARD, CellKind.BACKWARD, CellKind.WEIGHT):
        assert {box.number for box in boxes if box.kind is kind} == {0, 1, 2, 3, 4}
    halves = sum(box.end_s - box.start_s for box in boxes if box.kind in (CellKind.BACKWARD, CellKind.WEIGHT))
    assert abs(halves - 5 * 2 * 0.020) < 1e-9
    text = terminal(SPLIT_TIMELINE, SPLIT, 120)
    assert "▒ weight gradients" in text
    assert "▒" in next(line for line in text.splitlines() if "layers 4-5 │" in line)
    titles = [t.text or "" for t in ElementTree.fromstring(svg(SPLIT_TIMELINE, SPLIT)).iter()]
    assert any(t.startswith("weight gradients, microbatch 4:") for t in titles)


def test_a_legend_names_only_what_there_is() -> None:
    assert "weight gradients" not in terminal(TIMELINE, PLAN, 120)
    assert "weight gradients" not in svg(TIMELINE, PLAN)
