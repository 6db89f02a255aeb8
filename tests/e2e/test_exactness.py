"""Whatever is lost, and whenever: the same losses and weights as one process training alone, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Reference, Run
from tests.e2e.jobs import make_job
from tests.proof import rest_in_proof


@pytest.mark.parametrize("model", rest_in_proof(["gpt2", "bert", "llama", "function"]))
def test_a_run_without_failures_has_the_references_bits(model: str, text: Path, run: Run, reference: Reference) -> None:
    job = make_job(text, model)
    run(job).assert_same_bits(reference(job))


@pytest.mark.parametrize(
    "changes",
    [
        {"train__activation_checkpointing": True, "cluster__nodes": 4},
        {"train__dtype": "bfloat16", "cluster__nodes": 4},
        {"train__microbatch": 3, "resilience__min_nodes_per_pipeline": 1, "cluster__nodes": 2},
    ],
    ids=["recomputation", "bfloat16", "data parallel"],
)
def test_other_settings_have_the_references_bits(
    changes: dict[str, Any], text: Path, run: Run, reference: Reference
) -> None:
    job = make_job(text, **changes)
    run(job).assert_same_bits(reference(job))


ROUNDED = {"train__boundary_dtype": "bfloat16"}


@pytest.mark.proof
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    "cluster",
    [
        {"cluster__nodes": 1, "resilience__min_nodes_per_pipeline": 1, "resilience__fault_tolerance": 0},
        {"cluster__nodes": 3, "resilience__min_nodes_per_pipeline": 3, "resilience__fault_tolerance": 0},
    ],
    ids=["no cut", "one pipeline of three"],
)
def test_boundaries_round_whatever_the_cut(
    cluster: dict[str, Any], dtype: str, text: Path, run: Run, reference: Reference
) -> None:
    job = make_job(text, **ROUNDED, train__dtype=dtype, **cluster)
    run(job).assert_same_bits(reference(job))
    assert reference(job).losses != reference(make_job(text, train__dtype=dtype)).losses


@pytest.mark.proof
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    ("model", "changes"),
    [
        pytest.param("gpt2", {}),
        pytest.param("llama", {"resilience__policy": "redundancy", "cluster__schedule": "zb-h1"}),
        pytest.param("bert", {"resilience__policy": "reroute", "train__activation_checkpointing": True}),
        pytest.param("function", {"resilience__policy": "redundancy", "resilience__redundancy": "eager-eager"}),
    ],
)
def test_kills_where_boundaries_round_change_no_bit(
    model: str, changes: dict[str, Any], dtype: str, text: Path, run: Run, reference: Reference
) -> None:
    job = make_job(text, model, **ROUNDED, train__dtype=dtype, **{"cluster__nodes": 6, **changes})
    outcome = run(job, "kill:node=1,step=2,at=backward", "kill:node=4,step=3,at=recv")
    outcome.assert_same_bits(reference(job))
    assert [recovery.lost_nodes for recovery in outcome.result.recoveries] == [(1,), (4,)]


@pytest.mark.parametrize("node", rest_in_proof([0, 2, 6]))
@pytest.mark.parametrize(
    ("first", "second"),
    rest_in_proof(
        [
            pytest.param("recv", "sync"),
            pytest.param("vote", "apply"),
            pytest.param("load", "forward"),
            pytest.param("backward", "send"),
        ],
        kept=2,
    ),
)
def test_a_kill_at_each_instruction_changes_no_bit(
    first: str, second: str, node: int, text: Path, run: Run, reference: Reference
) -> None:
    job = make_job(text)
    outcome = run(job, f"kill:node={node},step=2,at={first}", f"kill:node={(node + 1) % 7},step=4,at={second}")
    outcome.assert_same_bits(reference(job))
    # Node 2 may be a middle stage, which loads nothing: then it lives.
    assert len(outcome.result.recoveries) == 2 or (first == "load" and len(outcome.result.recoveries) == 1)


@pytest.mark.parametrize("model", rest_in_proof(["llama", "bert", "function"]))
def test_kills_in_other_models_change_no_bit(model: str, text: Path, run: Run, reference: Reference) -> None:
    job = make_job(text, model)
    outcome = run(job, "kill:node=1,step=2,at=backward", "kill:node=6,step=4,at=sync")
    outcome.assert_same_bits(reference(job))
    assert [recovery.lost_nodes for recovery in outcome.result.recoveries] == [(1,), (6,)]


@pytest.mark.proof
@pytest.mark.parametrize("model", ["t5", "mixtral", "gemma3_text", "modernbert"])
def test_kills_in_models_of_other_structures(model: str, text: Path, run: Run, reference: Reference) -> None:
    """Two stacks with what passes between them, experts, masks of windows."""
    job = make_job(text, model)
    outcome = run(job, "kill:node=1,step=2,at=backward", "kill:node=6,step=4,at=sync")
    outcome.assert_same_bits(reference(job))
    assert [recovery.lost_nodes for recovery in outcome.result.recoveries] == [(1,), (6,)]


@pytest.mark.proof
@pytest.mark.parametrize("pair", [(0, 4), (0, 1), (2, 6), (3, 5)])
def test_two_kills_at_once_change_no_bit(pair: tuple[int, int], text: Path, run: Run, reference: Reference) -> None:
    job = make_job(text, resilience__fault_tolerance=2, cluster__nodes=8)
    outcome = run(job, *(f"kill:node={node},step=3,at=backward" for node in pair))
    outcome.assert_same_bits(reference(job))
    assert sorted(node for recovery in outcome.result.recoveries for node in recovery.lost_nodes) == sorted(pair)


def test_kills_that_leave_no_pipeline_whole_change_no_bit(text: Path, run: Run, reference: Reference) -> None:
    """Both pipelines lose a stage, not the same one: the step is finished on what is left of both."""
    job = make_job(text, cluster__nodes=4)
    outcome = run(job, "kill:node=0,step=3,at=backward", "kill:node=3,step=3,at=backward")
    assert outcome.summary["status"] == "exhausted"
    assert outcome.losses == {step: reference(job).losses[step] for step in outcome.losses}
    assert outcome.result.steps >= 3


@pytest.mark.proof
@pytest.mark.parametrize("victim", range(1, 8))
def test_a_kill_during_the_recovery_from_another_changes_no_bit(
    victim: int, text: Path, run: Run, reference: Reference
) -> None:
    """The second dies when the first recovery's plan moves state to or from it; it may have the only other replica."""
    job = make_job(text, cluster__nodes=8, resilience__fault_tolerance=2)
    outcome = run(job, "kill:node=0,step=2,at=forward", f"kill:node={victim},step=2,at=transfer")
    outcome.assert_same_bits(reference(job))


@pytest.mark.proof
def test_kills_change_no_bit_until_too_few_nodes_are_left(text: Path, run: Run, reference: Reference) -> None:
    job = make_job(text, train__steps=8)
    kills = [f"kill:node={node},step={step},at=backward" for node, step in ((1, 2), (3, 3), (5, 4), (0, 5))]
    outcome = run(job, *kills)
    assert outcome.summary["status"] == "exhausted"
    assert outcome.result.steps == 5
    assert "Add 1 node" in outcome.summary["message"]
    assert [recovery.lost_nodes for recovery in outcome.result.recoveries] == [(1,), (3,), (5,), (0,)]
    resumed = run(job, resume=outcome.result.folder)
    resumed.assert_same_bits(reference(job))


@pytest.mark.proof
def test_the_loss_of_a_node_of_two_devices_changes_no_bit(text: Path, run: Run, reference: Reference) -> None:
    job = make_job(text, cluster__devices_per_node=2, cluster__nodes=4, resilience__min_nodes_per_pipeline=1)
    outcome = run(job, "kill:node=1,step=2,at=backward", "kill:node=3,step=4,at=vote")
    outcome.assert_same_bits(reference(job))
    assert outcome.summary["live_nodes"] == 2


@pytest.mark.parametrize("optimizer_state", rest_in_proof(["spread", "whole"]))
def test_the_loss_of_a_device_of_a_stage_and_of_a_node_changes_no_bit(
    optimizer_state: str, text: Path, run: Run, reference: Reference
) -> None:
    devices: dict[str, Any] = {"cluster__devices_per_node": 2, "cluster__devices_per_stage": 2}
    devices |= {"cluster__optimizer_state": optimizer_state, "resilience__min_nodes_per_pipeline": 1}
    job = make_job(text, cluster__nodes=4, **devices)
    outcome = run(job, "kill:node=1,step=2,at=backward,device=1", "kill:node=3,step=4,at=vote")
    outcome.assert_same_bits(reference(job))
    first_lost, *others = [(event["node"], event["device"]) for event in outcome.events("device_lost")]
    assert first_lost == (1, 1)
    assert {node for node, _ in others} <= {3}, "the processes of a node that is killed do not end all at once"
    assert [event["node"] for event in outcome.events("node_lost")] == [3]
    first = outcome.events("plan_taken")[0]["pipelines"]
    assert {tuple(worker % 2 for worker, _, _ in pipeline) for pipeline in first} >= {(0,), (1,)}
