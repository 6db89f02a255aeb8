"""Slow nodes with real processes: found within a few steps, told, given less to do, restored; and always the same bits.

What a step takes afterwards is measured by `benchmarks/slow_nodes.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from planaria.plan.costs.model_profile import LayerTimes
from planaria.protocol.messages.records import NodeSpeed
from planaria.protocol.thresholds import AGREEING_WINDOWS
from planaria.ui.cli import live
from tests.e2e.conftest import Reference, Run
from tests.e2e.jobs import Outcome, make_emulated_job, make_job, profile
from tests.e2e.test_live import User

COMPUTE = {"model__config__n_embd": 96, "model__config__n_positions": 64, "train__sequence_length": 64}
"""Layers of some milliseconds: of shorter ones little is computed, and that is not judged."""


@pytest.fixture(scope="module")
def profile_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile") / "profile.json"
    path.write_bytes(msgspec.json.encode(profile()))
    return path


SLOW_LAYER = LayerTimes(forward_s=0.05, backward_input_s=0.15, backward_weight_s=0.15)


def told(outcome: Outcome) -> list[tuple[int, int, float]]:
    return [(e["node"], e["step"], e["speed"]) for e in outcome.events("node_speed")]


def placements(outcome: Outcome) -> list[dict[str, Any]]:
    return [plan for plan in outcome.events("plan_taken") if plan["purpose"] != "warm up"]


def test_a_node_of_half_speed_gets_less_to_do(profile_file: Path, run: Run, reference: Reference) -> None:
    """Found after three steps; the plan then made of it is nearly as fast as the first one, and follows it back. A
    coordinator that begins again in between tells nobody anew and keeps that plan."""
    job = make_emulated_job(profile_file, train__steps=34, train__global_batch=18)
    outcome = run(job, "slow:node=3,step=3,factor=2,until=12", "coordinator:step=9,at=vote")
    outcome.assert_same_bits(reference(job))
    assert outcome.events("coordinator_restarted")
    assert told(outcome) == [(3, 3 + AGREEING_WINDOWS - 1, 0.5), (3, 12 + AGREEING_WINDOWS - 1, 1.0)]
    first, slow, restored = placements(outcome)
    assert (slow["step"], restored["step"]) == (7, 16)
    assert slow["estimated_step_s"] < 1.1 * first["estimated_step_s"]
    assert restored["estimated_step_s"] <= 1.02 * first["estimated_step_s"]
    assert not outcome.events("node_lost")


@pytest.mark.proof
def test_a_node_of_a_fifth_of_the_speed_is_left_out(
    profile_file: Path, tmp_path: Path, run: Run, reference: Reference
) -> None:
    """It lives, rests, and is needed when another one dies."""
    folder = tmp_path / "run-0"
    user = User(folder, NodeSpeed, lambda run_folder: live.status(run_folder, as_json=False))
    job = make_emulated_job(profile_file, train__steps=12, cluster__nodes=5)
    outcome = run(job, "slow:node=3,step=2,factor=5", "kill:node=4,step=9,at=backward", observers=[user])
    assert isinstance(user.answer, str), user.answer
    assert "slow: node 3 (20% of the others' speed" in user.answer
    outcome.assert_same_bits(reference(job))
    assert told(outcome)[0] == (3, 2 + AGREEING_WINDOWS - 1, 0.2)
    used = [{worker for stages in plan["pipelines"] for worker, _, _ in stages} for plan in placements(outcome)]
    assert used[1] == {0, 1, 2, 4}
    assert used[-1] == {0, 1, 2, 3}
    assert [lost["node"] for lost in outcome.events("node_lost")] == [4]


def test_a_slow_node_is_not_thought_to_hang(tmp_path: Path, run: Run) -> None:
    """Backwards of half a second take five times as long, where a hang is told after three times as long."""
    costs = profile(2)
    second = tuple(msgspec.structs.replace(layer, times=(SLOW_LAYER,)) for layer in costs.layers)
    path = tmp_path / "profile.json"
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(costs, layers=second)))
    changes = {"cluster__nodes": 2, "resilience__min_nodes_per_pipeline": 1, "train__global_batch": 2}
    outcome = run(make_emulated_job(path, train__steps=2, **changes), "slow:node=1,step=2,factor=5")
    assert not outcome.events("node_lost")
    assert outcome.summary["status"] == "completed"


@pytest.mark.proof
def test_a_slow_node_is_found_among_others_that_really_compute(text: Path, run: Run, reference: Reference) -> None:
    job = make_job(text, **COMPUTE, train__steps=60)
    outcome = run(job, "slow:node=4,step=4,factor=3")
    outcome.assert_same_bits(reference(job))
    node, step, speed = told(outcome)[0]
    assert node == 4
    assert step <= 50, "of steps so short it takes several to tell anything"
    assert 0.2 <= speed <= 0.5
    assert not outcome.events("node_lost")


@pytest.mark.proof
def test_an_oversubscribed_machine_makes_nobody_slow(text: Path, run: Run, reference: Reference) -> None:
    """Seven workers share its cores."""
    job = make_job(text, **COMPUTE, train__steps=8)
    outcome = run(job)
    outcome.assert_same_bits(reference(job))
    assert not told(outcome)
    assert len(outcome.events("plan_taken")) == 1
