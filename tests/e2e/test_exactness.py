"""Whatever is lost, and whenever: the same losses and weights as one process training alone, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planaria.job.settings import Job
from tests.e2e.conftest import Run
from tests.e2e.jobs import Outcome, make_job
from tests.proof import rest_in_proof

Reference = Callable[[Job], Outcome]


@pytest.mark.parametrize("model", ["gpt2", "bert", "llama", "function"])
def test_no_failure(model: str, text: Path, run: Run, reference: Reference) -> None:
    job = make_job(text, model)
    run(job).assert_same_bits(reference(job))


@pytest.mark.parametrize(
    "changes",
    [
        {"train__activation_checkpointing": True},
        {"train__dtype": "bfloat16"},
        {"cluster__devices_per_node": 2, "cluster__nodes": 4, "resilience__min_nodes_per_pipeline": 1},
        {"train__microbatch": 3, "resilience__min_nodes_per_pipeline": 1, "cluster__nodes": 2},
    ],
    ids=["recomputation", "bfloat16", "two devices a node", "data parallel"],
)
def test_no_failure_with(changes: dict[str, Any], text: Path, run: Run, reference: Reference) -> None:
    job = make_job(text, **changes)
    run(job).assert_same_bits(reference(job))


@pytest.mark.parametrize("node", rest_in_proof([0, 2, 6]))
@pytest.mark.parametrize("at", ["load", "forward", "backward", "send", "recv", "sync", "vote", "apply"])
def test_a_kill_at_each_instruction(at: str, node: int, text: Path, run: Run, reference: Reference) -> None:
    job = make_job(text)
    outcome = run(job, f"kill:node={node},step=2,at={at}")
    outcome.assert_same_bits(reference(job))
    # Node 2 may be a middle stage, which loads nothing: then it lives.
    assert len(outcome.result.recoveries) == 1 or (at == "load" and not outcome.result.recoveries)


@pytest.mark.parametrize("model", ["bert", "llama", "function"])
def test_kills_in_other_models(model: str, text: Path, run: Run, reference: Reference) -> None:
    job = make_job(text, model)
    outcome = run(job, "kill:node=1,step=2,at=backward", "kill:node=6,step=4,at=sync")
    outcome.assert_same_bits(reference(job))
    assert [recovery.lost_nodes for recovery in outcome.result.recoveries] == [(1,), (6,)]


@pytest.mark.parametrize("pair", rest_in_proof([(0, 4), (0, 1), (2, 6), (3, 5)]))
def test_two_at_once(pair: tuple[int, int], text: Path, run: Run, reference: Reference) -> None:
    job = make_job(text, resilience__fault_tolerance=2, cluster__nodes=8)
    outcome = run(job, *(f"kill:node={node},step=3,at=backward" for node in pair))
    outcome.assert_same_bits(reference(job))
    assert sorted(node for recovery in outcome.result.recoveries for node in recovery.lost_nodes) == sorted(pair)


def test_no_pipeline_left_whole(text: Path, run: Run, reference: Reference) -> None:
    """Both pipelines lose a stage, not the same one: the step is finished on what is left of both."""
    job = make_job(text, cluster__nodes=4)
    outcome = run(job, "kill:node=0,step=3,at=backward", "kill:node=3,step=3,at=backward")
    assert outcome.summary["status"] == "exhausted"
    assert outcome.losses == {step: reference(job).losses[step] for step in outcome.losses}
    assert outcome.result.steps >= 3


@pytest.mark.parametrize("victim", rest_in_proof(range(1, 8)))
def test_one_during_the_recovery_from_another(victim: int, text: Path, run: Run, reference: Reference) -> None:
    """The second dies when the first recovery's plan moves state to or from it; it may have the only other replica."""
    job = make_job(text, cluster__nodes=8, resilience__fault_tolerance=2)
    outcome = run(job, "kill:node=0,step=2,at=forward", f"kill:node={victim},step=2,at=transfer")
    outcome.assert_same_bits(reference(job))


def test_one_after_the_other_until_too_few_are_left(text: Path, run: Run, reference: Reference) -> None:
    job = make_job(text, train__steps=8)
    kills = [f"kill:node={node},step={step},at=backward" for node, step in ((1, 2), (3, 3), (5, 4), (0, 5))]
    outcome = run(job, *kills)
    assert outcome.summary["status"] == "exhausted"
    assert outcome.result.steps == 5
    assert "Add 1 node" in outcome.summary["message"]
    assert [recovery.lost_nodes for recovery in outcome.result.recoveries] == [(1,), (3,), (5,), (0,)]
    resumed = run(job, resume=outcome.result.folder)
    resumed.assert_same_bits(reference(job))


def test_a_whole_node_of_two_devices(text: Path, run: Run, reference: Reference) -> None:
    job = make_job(text, cluster__devices_per_node=2, cluster__nodes=4, resilience__min_nodes_per_pipeline=1)
    outcome = run(job, "kill:node=1,step=2,at=backward", "kill:node=3,step=4,at=vote")
    outcome.assert_same_bits(reference(job))
    assert outcome.summary["live_nodes"] == 2
