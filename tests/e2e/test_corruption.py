"""Nodes that compute wrong: found before a step is committed with it, named, fenced; and the reference's bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import Reference, Run
from tests.e2e.jobs import make_job
from tests.proof import rest_in_proof

TWO_REPLICAS = {"cluster__nodes": 5}
"""Five nodes in two pipelines; else three pipelines of seven."""


@pytest.mark.parametrize("fault", rest_in_proof(["bits=1", "bits=64", "bits=1,times=always"], kept=1))
@pytest.mark.parametrize("changes", [{}, TWO_REPLICAS], ids=["three replicas", "two replicas"])
def test_a_replica_that_changed_at_rest_is_found_in_the_same_step(
    changes: dict[str, int], fault: str, text: Path, run: Run, reference: Reference
) -> None:
    job = make_job(text, **changes)
    outcome = run(job, f"corrupt:node=1,step=3,at=rest,{fault}")
    (wrong,) = outcome.events("computed_wrong")
    assert (wrong["node"], wrong["step"], wrong["held"]) == (1, 3, "replica")
    assert not outcome.events("restored")
    outcome.assert_same_bits(reference(job))


@pytest.mark.proof
def test_of_three_replicas_the_odd_one_made_a_wrong_step(text: Path, run: Run, reference: Reference) -> None:
    job = make_job(text)
    outcome = run(job, "corrupt:node=1,step=3,at=apply")
    (wrong,) = outcome.events("computed_wrong")
    assert (wrong["node"], wrong["step"]) == (1, 4), "what step 3 made is compared in step 4"
    assert not outcome.events("restored")
    outcome.assert_same_bits(reference(job))


def test_of_two_replicas_the_step_done_again_tells_which_was_wrong(text: Path, run: Run, reference: Reference) -> None:
    job = make_job(text, **TWO_REPLICAS, train__steps=6, run__checkpoint_every=2)
    outcome = run(job, "corrupt:node=1,step=4,at=apply")
    (back,) = outcome.events("restored")
    assert back["from_step"] == 4
    assert back["to_step"] < 4
    assert "differ" in back["reason"]
    (wrong,) = outcome.events("computed_wrong")
    assert (wrong["node"], wrong["step"]) == (1, 5)
    outcome.assert_same_bits(reference(job))


@pytest.mark.proof
def test_a_wrong_sum_is_never_applied(text: Path, run: Run, reference: Reference) -> None:
    job = make_job(text)
    outcome = run(job, "corrupt:node=1,step=3,at=sync")
    assert any("is begun anew" in note["text"] for note in outcome.events("note"))
    outcome.assert_same_bits(reference(job))


@pytest.mark.parametrize("changes", rest_in_proof([TWO_REPLICAS, {}], kept=1))
@pytest.mark.parametrize("at", rest_in_proof(["backward,bits=8", "forward,bits=1", "send,bits=1"], kept=1))
def test_with_audits_of_everything_who_computed_wrong_is_named_in_the_same_step(
    at: str, changes: dict[str, int], text: Path, run: Run, reference: Reference
) -> None:
    job = make_job(text, **changes, resilience__audit=1.0)
    outcome = run(job, f"corrupt:node=0,step=3,at={at}")
    (wrong,) = outcome.events("computed_wrong")
    assert (wrong["node"], wrong["step"], wrong["held"]) == (0, 3, "computation")
    assert not outcome.events("restored")
    outcome.assert_same_bits(reference(job))


@pytest.mark.proof
@pytest.mark.parametrize("fault", ["kill:node=2,step=3,at=backward", "notice:node=1,step=2,at=forward,grace=2"])
def test_audits_accuse_nobody_when_a_node_is_lost(fault: str, text: Path, run: Run, reference: Reference) -> None:
    job = make_job(text, resilience__audit=0.5)
    outcome = run(job, fault)
    assert not outcome.events("computed_wrong")
    outcome.assert_same_bits(reference(job))


@pytest.mark.proof
def test_what_an_activation_did_is_the_same_everywhere_and_not_found(text: Path, run: Run) -> None:
    outcome = run(make_job(text), "corrupt:node=1,step=3,at=forward,bits=64")
    assert not outcome.events("computed_wrong")
