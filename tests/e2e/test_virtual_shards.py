"""Layers in shards on real processes: whatever is lost, the bits of a reference that computes in shards too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Reference, Run
from tests.e2e.jobs import make_job
from tests.e2e.test_optimizers import KILLS
from tests.proof import rest_in_proof

JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "gpt2, in two passes": ("gpt2", {"cluster__schedule": "zb-h1"}),
    "bfloat16": ("llama", {"train__dtype": "bfloat16", "train__boundary_dtype": "bfloat16"}),
    "recomputed": ("gpt2", {"train__activation_checkpointing": True, "resilience__policy": "redundancy"}),
}


TENSOR: dict[str, Any] = {
    "model__virtual_shards": 4,
    "cluster__nodes": 3,
    "cluster__stage_parallelism": "tensor",
    "train__global_batch": 4,
    "train__steps": 6,
    "resilience__min_nodes_per_pipeline": 1,
}
WIDE = {"gpt2": {"model__config__n_head": 4}, "llama": {"model__config__num_attention_heads": 4}}


@pytest.mark.parametrize("name", rest_in_proof(list(JOBS)))
def test_kills(name: str, text: Path, run: Run, reference: Reference) -> None:
    model, changes = JOBS[name]
    job = make_job(text, model, model__virtual_shards=2, **changes)
    run(job, *KILLS).assert_same_bits(reference(job))


@pytest.mark.proof
@pytest.mark.parametrize(
    ("model", "devices", "changes"),
    [
        pytest.param("llama", 2, {"cluster__optimizer_state": "spread"}),
        pytest.param("gpt2", 2, {"resilience__policy": "adaptive"}),
        pytest.param("gpt2", 2, {"resilience__policy": "redundancy"}),
        pytest.param("llama", 4, {"train__dtype": "bfloat16", "train__boundary_dtype": "bfloat16"}),
    ],
)
def test_devices_that_share_microbatches_may_be_lost(
    model: str, devices: int, changes: dict[str, Any], text: Path, run: Run, reference: Reference
) -> None:
    """A device within an exchange, and a node in the sums: what is left takes turns, or shares again."""
    per_node = {"cluster__devices_per_node": devices, "cluster__devices_per_stage": devices}
    job = make_job(text, model, **TENSOR, **WIDE[model], **per_node, **changes)
    outcome = run(job, "kill:node=1,step=2,at=exchange,device=1", "kill:node=1,step=4,at=sync")
    outcome.assert_same_bits(reference(job))
    first, *others = [(event["node"], event["device"]) for event in outcome.events("device_lost")]
    assert first == (1, 1)
    assert {node for node, _ in others} <= {1}, "the processes of a node that is killed do not end all at once"
    assert [event["node"] for event in outcome.events("node_lost")] == [1]


@pytest.mark.parametrize("at", ["exchange", *rest_in_proof(["backward", "sync"])])
def test_a_step_of_devices_that_share_microbatches_is_finished_by_others(
    at: str, text: Path, run: Run, reference: Reference
) -> None:
    per_node = {"cluster__devices_per_node": 2, "cluster__devices_per_stage": 2}
    job = make_job(text, "llama", **TENSOR, **WIDE["llama"], **per_node)
    outcome = run(job, f"kill:node=2,step=3,at={at}")
    outcome.assert_same_bits(reference(job))
    purposes = [
        (event["step"], event["purpose"], event["shares_microbatches"]) for event in outcome.events("plan_taken")
    ]
    may_begin_anew = outcome.events("device_lost")  # where the processes of a node do not end all at once
    assert (3, "finish step", True) in purposes or may_begin_anew, purposes


@pytest.mark.proof
@pytest.mark.parametrize(
    ("fault", "held"),
    [
        ("backward,device=1,bits=8", "computation"),
        ("forward,bits=1", "computation"),
        ("rest,device=1,bits=8", "replica"),
    ],
)
def test_who_computes_wrong_among_devices_that_share_microbatches_is_named_in_the_same_step(
    fault: str, held: str, text: Path, run: Run, reference: Reference
) -> None:
    """One device of another node runs all again that those of a stage run together."""
    nodes = {"cluster__nodes": 5, "resilience__min_nodes_per_pipeline": 2}
    per_node = {"cluster__devices_per_node": 2, "cluster__devices_per_stage": 2}
    job = make_job(text, "llama", **{**TENSOR, **nodes}, **WIDE["llama"], **per_node, resilience__audit=1.0)
    outcome = run(job, f"corrupt:node=0,step=3,at={fault}")
    (wrong,) = outcome.events("computed_wrong")
    assert (wrong["node"], wrong["step"], wrong["held"]) == (0, 3, held)
    assert not outcome.events("restored")
    outcome.assert_same_bits(reference(job))
