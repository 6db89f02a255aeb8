"""Random jobs, plans and kill points on real processes: the reference's bits, or an end that the job's rules allow.

`tests/runtime/worker/test_cluster.py` tries hundreds of schedules of the same code in virtual time; here the processes,
sockets and signals are real.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from planaria.job.faults import FAULT_POINTS
from planaria.plan.schedule_kind import ScheduleKind
from tests.e2e.conftest import Reference, Run
from tests.e2e.jobs import make_job
from tests.proof import rest_in_proof


@pytest.mark.parametrize("seed", rest_in_proof(range(12)))
def test_a_random_run_keeps_every_promise(seed: int, text: Path, run: Run, reference: Reference) -> None:
    draw = random.Random(seed)
    model = draw.choice(["gpt2", "bert", "llama", "function"])
    tolerance, smallest = draw.randint(0, 2), draw.randint(1, 2)
    nodes = (tolerance + 1) * smallest + draw.randint(0, 3)
    job = make_job(
        text,
        model,
        train__steps=4,
        cluster__nodes=nodes,
        cluster__schedule=draw.choice(list(ScheduleKind)).value,
        resilience__fault_tolerance=tolerance,
        resilience__min_nodes_per_pipeline=smallest,
        run__checkpoint_every=draw.choice([0, 2]),
        train__boundary_dtype=draw.choice(["float32", "bfloat16"]),
    )
    victims = draw.sample(range(nodes), min(nodes - 1, draw.randint(0, 3)))
    faults = [f"kill:node={node},step={draw.randint(1, 4)},at={draw.choice(FAULT_POINTS)}" for node in victims]
    outcome = run(job, *faults)
    expected = reference(job)
    if outcome.summary["status"] == "completed":
        outcome.assert_same_bits(expected)
        return
    if outcome.summary["status"] == "exhausted":
        assert nodes - len(outcome.events("node_lost")) < (tolerance + 1) * smallest
    else:
        assert outcome.summary["status"] == "failed"
        assert "no replica" in outcome.summary["message"]
    assert outcome.losses == {step: expected.losses[step] for step in outcome.losses}
