"""Nodes that live and do nothing, and nodes that say that they will go."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import Reference, Run
from tests.e2e.jobs import make_emulated_job, make_job
from tests.proof import rest_in_proof


@pytest.mark.parametrize("at", rest_in_proof(["forward", "sync", "recv", "vote"]))
def test_a_node_that_is_stopped_is_lost(at: str, text: Path, run: Run, reference: Reference) -> None:
    job = make_job(text, cluster__nodes=5)
    outcome = run(job, f"hang:node=2,step=3,at={at}")
    outcome.assert_same_bits(reference(job))
    (lost,) = outcome.events("node_lost")
    assert lost["node"] == 2
    assert lost["cause"].startswith("silent for")


@pytest.mark.parametrize("at", rest_in_proof(["backward", "forward", "apply"]))
def test_a_main_thread_that_hangs_is_found_though_its_process_answers(
    at: str, text: Path, run: Run, reference: Reference
) -> None:
    job = make_job(text, cluster__nodes=5)
    outcome = run(job, f"freeze:node=1,step=4,at={at}")
    outcome.assert_same_bits(reference(job))
    (lost,) = outcome.events("node_lost")
    assert lost["node"] == 1
    assert lost["cause"].startswith("hung")


@pytest.mark.proof
@pytest.mark.parametrize(("kind", "cause"), [pytest.param("hang", "silent for"), pytest.param("freeze", "hung")])
def test_a_device_that_hangs_is_lost_alone(kind: str, cause: str, text: Path, run: Run, reference: Reference) -> None:
    devices = {"cluster__devices_per_node": 2, "cluster__devices_per_stage": 2}
    job = make_job(text, cluster__nodes=3, resilience__min_nodes_per_pipeline=1, **devices)
    outcome = run(job, f"{kind}:node=1,step=3,at=backward,device=1")
    outcome.assert_same_bits(reference(job))
    (lost,) = outcome.events("device_lost")
    assert (lost["node"], lost["device"]) == (1, 1)
    assert lost["cause"].startswith(cause)
    assert not outcome.events("node_lost")


@pytest.mark.proof
def test_two_nodes_are_stopped_at_once(text: Path, run: Run, reference: Reference) -> None:
    job = make_job(text)
    outcome = run(job, "hang:node=0,step=3,at=forward", "hang:node=5,step=3,at=backward")
    outcome.assert_same_bits(reference(job))
    assert {event["node"] for event in outcome.events("node_lost")} == {0, 5}


def test_a_node_that_gives_notice_leaves_with_nothing_run_twice(
    slow_layers: Path, run: Run, reference: Reference
) -> None:
    job = make_emulated_job(slow_layers, train__steps=8)  # time for the notice to be heard, and for the step after it
    outcome = run(job, "notice:node=1,step=2,at=forward,grace=60")
    outcome.assert_same_bits(reference(job))
    assert [event["node"] for event in outcome.events("node_released")] == [1]
    assert not outcome.events("node_lost")
    assert not outcome.events("recovered")
