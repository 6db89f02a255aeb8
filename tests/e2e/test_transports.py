"""By whatever way messages go from worker to worker, on real processes: whatever is lost, the reference's bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Reference, Run
from tests.e2e.jobs import make_job
from tests.e2e.test_optimizers import KILLS
from tests.e2e.test_virtual_shards import TENSOR, WIDE
from tests.proof import rest_in_proof

GLOO = {"cluster__transport": "gloo"}
SHARED = {"cluster__device": "stand-in", "train__steps": 3, "train__global_batch": 4}
OF_TWO: dict[str, Any] = {
    "cluster__nodes": 3,
    "cluster__devices_per_node": 2,
    "cluster__devices_per_stage": 2,
    "resilience__min_nodes_per_pipeline": 1,
}
IN_EXCHANGE = ("kill:node=1,step=2,at=exchange,device=1", "kill:node=1,step=4,at=sync")
WAYS: dict[str, dict[str, Any]] = {
    "gloo": GLOO,
    "gloo, shadows": {**GLOO, "resilience__policy": "redundancy"},
    "gloo, exchanges": {**GLOO, **TENSOR, **WIDE["gpt2"], **OF_TWO},
    "gloo, all else": {**GLOO, "resilience__policy": "adaptive", "cluster__schedule": "zb-h1"},
}


@pytest.mark.parametrize("way", rest_in_proof(WAYS))
def test_kills_where_groups_carry_messages(way: str, text: Path, run: Run, reference: Reference) -> None:
    job = make_job(text, **WAYS[way])
    kills = IN_EXCHANGE if job.cluster.devices_per_node > 1 else KILLS
    run(job, *kills).assert_same_bits(reference(job))


@pytest.mark.proof
@pytest.mark.parametrize("fault", ["hang:node=2,step=3,at=recv", "freeze:node=1,step=3,at=send"])
def test_who_hangs_holds_no_group_up(fault: str, text: Path, run: Run, reference: Reference) -> None:
    job = make_job(text, **GLOO, cluster__nodes=5)
    outcome = run(job, fault)
    outcome.assert_same_bits(reference(job))
    assert len(outcome.events("node_lost")) == 1


@pytest.mark.parametrize(
    "changes",
    rest_in_proof(
        [
            {"cluster__nodes": 5},
            {**OF_TWO, "cluster__optimizer_state": "spread"},
            {**TENSOR, **WIDE["gpt2"], **OF_TWO},
            {"cluster__nodes": 5, "cluster__transport": "tcp"},
        ]
    ),
)
def test_kills_where_devices_read_each_others_memory(
    changes: dict[str, Any], text: Path, run: Run, reference: Reference
) -> None:
    """On stand-ins for GPUs; the last one reads nobody's."""
    job = make_job(text, **{**changes, **SHARED})
    run(job, "kill:node=1,step=2,at=backward").assert_same_bits(reference(job))
