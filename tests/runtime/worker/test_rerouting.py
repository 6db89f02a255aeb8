"""Other policies than templates in virtual time: the reference's bits, whatever is lost and whenever."""

from __future__ import annotations

import pytest

from planaria.protocol.messages.records import Note, PlanTaken, Restored, RunStatus
from tests.proof import batches, rest_in_proof
from tests.runtime.worker.cluster import Kill, Visit, Weather
from tests.runtime.worker.schedules import INSTRUCTIONS, Schedule, any_policy, job_of
from tests.runtime.worker.test_cluster import Laboratory


@pytest.mark.parametrize("seeds", batches(range(18), size=9, kept=1), ids=str)
def test_random_schedules_keep_every_promise(seeds: range, laboratory: Laboratory) -> None:
    laboratory.run_all(seeds, any_policy)


def grid(
    laboratory: Laboratory, kills: tuple[Kill, ...], visits: tuple[Visit, ...] = (), **changes: object
) -> Schedule:
    """Three pipelines of two stages."""
    job = job_of(
        nodes=6, depth=2, steps=10, microbatches=9, smallest=2, policy="reroute", source=str(laboratory.source),
        **changes,  # type: ignore[arg-type]
    )  # fmt: skip
    return Schedule(seed=1, job=job, kills=kills, visits=visits, weather=Weather(), stop_at_s=None)


@pytest.mark.parametrize("at", rest_in_proof([at for at in INSTRUCTIONS if at != "transfer"], kept=3))
def test_a_kill_at_each_instruction_of_a_rerouted_step(at: str, laboratory: Laboratory) -> None:
    """The second strikes a step whose routes cross, and leaves one owner of some layers; nothing ever moves."""
    outcome = laboratory.run(grid(laboratory, (Kill(node=1, at="backward", step=2), Kill(node=2, at=at, step=3))))
    assert outcome.finish.status is RunStatus.COMPLETED
    plans = outcome.of(PlanTaken)
    assert [plan.transfer_bytes for plan in plans] == [0] * len(plans)
    assert {worker for stages in plans[-1].pipelines for worker, _, _ in stages} <= {0, 2, 3, 4, 5}


def test_a_node_that_comes_gets_the_lost_place_beside_a_step(laboratory: Laboratory) -> None:
    visits = (Visit(node=6, after="StepCommitted", nth=3),)
    outcome = laboratory.run(grid(laboratory, (Kill(node=1, at="backward", step=2),), visits))
    plans = outcome.of(PlanTaken)
    assert [plan.purpose for plan in plans] == ["start", "finish step", "reconfigure", "warm up", "reconfigure"]
    replaced = [[(6 if w == 1 else w, *layers) for w, *layers in stages] for stages in plans[0].pipelines]
    assert [[tuple(stage) for stage in stages] for stages in plans[-1].pipelines] == replaced


def test_a_degraded_plan_is_told_and_left(laboratory: Laboratory) -> None:
    kills = (Kill(node=1, at="backward", step=2), Kill(node=3, at="sync", step=3))
    outcome = laboratory.run(grid(laboratory, kills, (Visit(node=6, after="StepCommitted", nth=4),)))
    told = [note.text for note in outcome.of(Note)]
    assert any("the plan is degraded: of 2 replicas some layer has 1" in text for text in told)
    assert told[-1] == "every layer has 2 replicas again"


def test_the_last_owner_of_a_layer_is_lost(laboratory: Laboratory) -> None:
    """Then there is nobody to go to: back to the checkpoint, on the nodes that are left."""
    kills = tuple(Kill(node=node, at="forward", step=step) for node, step in ((1, 2), (3, 3), (5, 4)))
    outcome = laboratory.run(grid(laboratory, kills))
    assert outcome.of(Restored) or outcome.finish.status is not RunStatus.COMPLETED
