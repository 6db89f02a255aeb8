"""Degraded plans of jobs that write no checkpoints: the state is saved beside training, as a last replica may go."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from planaria.job.sections.resilience import WhenExhausted
from planaria.protocol.messages.records import (
    CheckpointSaved,
    CoordinatorRestarted,
    Note,
    PlanTaken,
    Restored,
    RunStatus,
    Waiting,
)
from tests.runtime.worker.cluster import Crash, Kill, Outcome, Visit, Weather
from tests.runtime.worker.schedules import Schedule, job_of
from tests.runtime.worker.test_adaptive import favouring
from tests.runtime.worker.test_cluster import Laboratory


def grid(laboratory: Laboratory, policy: str, kills: tuple[Kill, ...], **others: object) -> Schedule:
    """Pipelines of two stages: even nodes have the first layers."""
    nodes = 4 if policy == "adaptive" else 8
    job = job_of(
        nodes=nodes, depth=2, steps=14, microbatches=8, smallest=2, policy=policy, source=str(laboratory.source),
        when_exhausted="wait", allow_drop=policy == "drop",
    )  # fmt: skip
    arguments = {"seed": 1, "weather": Weather(), "stop_at_s": None} | others
    return Schedule(job=job, kills=kills, **arguments)  # type: ignore[arg-type]


def one_by_one(policy: str, last: int = 9) -> tuple[Kill, ...]:
    """All that have the first layers, and the last replica in another step. The degraded plan begins in the step after
    the last but one, or in that step where nothing of it was done yet."""
    nodes = {"adaptive": (0,), "reroute": (0, 2, 4), "drop": (0, 2, 4)}[policy]
    first = tuple(Kill(node=node, at="backward", step=2 + at) for at, node in enumerate(nodes))
    return (*first, Kill(node=2 if policy == "adaptive" else 6, at="backward", step=last))


def saved_beside(outcome: Outcome) -> list[int]:
    """The steps of checkpoints that were saved while the run went on."""
    return [record.step for record in outcome.of(CheckpointSaved)][:-1]


@pytest.mark.parametrize("policy", ["reroute", "drop", "adaptive"])
def test_the_last_replica_goes_and_the_job_goes_back_to_what_the_degraded_plan_saved(
    policy: str, laboratory: Laboratory
) -> None:
    visits = tuple(Visit(node=4 + at, after="Restored") for at in range(2)) if policy == "adaptive" else ()
    outcome = laboratory.run(grid(laboratory, policy, one_by_one(policy), visits=visits))
    assert outcome.finish.status is RunStatus.COMPLETED, outcome.finish.message
    first = {"adaptive": 3, "reroute": 4, "drop": 5}[policy]
    assert saved_beside(outcome) == [first], "once; the next would be due after a minute"
    (restored,) = outcome.of(Restored)
    assert (restored.from_step, restored.to_step) == (8, first)
    assert not outcome.of(Waiting)
    (warning,) = (note.text for note in outcome.of(Note) if "the plan is degraded" in note.text)
    assert "the state is saved now and then beside training" in warning


def test_it_exits_with_a_checkpoint_to_resume(laboratory: Laboratory) -> None:
    """What the laboratory does too, on as many nodes as before."""
    another = Kill(node=1, at="backward", step=9)
    which = grid(laboratory, "adaptive", (*one_by_one("adaptive"), another))
    resilience = msgspec.structs.replace(which.job.resilience, when_exhausted=WhenExhausted.EXIT)
    outcome = laboratory.run(replace(which, job=msgspec.structs.replace(which.job, resilience=resilience)))
    assert outcome.finish.status is RunStatus.EXHAUSTED
    assert "Checkpoint: step 3." in outcome.finish.message
    assert outcome.checkpoint is not None
    assert outcome.checkpoint.step == 3


def test_it_begins_again_with_the_replicas_that_the_nodes_are_enough_for(laboratory: Laboratory) -> None:
    """Two of four, for a job of two pipelines of two: one pipeline, here with shadows, as losses are frequent; to the
    same bits, and two when nodes come."""
    kills = one_by_one("adaptive")
    alone = laboratory.run(grid(laboratory, "adaptive", kills))
    assert alone.finish.status is RunStatus.COMPLETED, alone.finish.message
    (again,) = (taken for taken in alone.of(PlanTaken) if taken.purpose == "restore")
    assert len(again.pipelines) == 1
    assert "templates (2)" in [candidate.name for candidate in again.candidates]
    visits = tuple(Visit(node=4 + at, after="Restored") for at in range(2))
    joined = laboratory.run(grid(laboratory, "adaptive", kills, visits=visits))
    assert joined.finish.status is RunStatus.COMPLETED, joined.finish.message
    assert len(joined.of(PlanTaken)[-1].pipelines) == 2


@pytest.mark.parametrize(
    ("crash", "saved"),
    [
        (Crash(after="CheckpointSaved"), [4, 5]),
        (Crash(after="ManifestWritten"), [5]),
        (Crash(after="StepCommitted", nth=4), [5]),
    ],
    ids=["after it", "before that is written down", "while it is written"],
)
def test_a_degraded_run_outlives_its_coordinator(crash: Crash, saved: list[int], laboratory: Laboratory) -> None:
    """The next one goes back to what is whole, and has the state saved once more."""
    which = grid(laboratory, "reroute", one_by_one("reroute", last=10), crashes=(crash,))
    outcome = laboratory.run(which)
    assert outcome.of(CoordinatorRestarted)
    assert outcome.finish.status is RunStatus.COMPLETED
    assert saved_beside(outcome) == saved
    (restored,) = outcome.of(Restored)
    assert (restored.from_step, restored.to_step) == (9, saved[-1])


def test_a_writer_is_lost_and_the_next_step_is_saved(laboratory: Laboratory) -> None:
    """Node 1 has a part of step 4's: what it was to write, nobody else has any more."""
    kills = (*one_by_one("reroute"), Kill(node=1, at="after StepCommitted", nth=4))
    outcome = laboratory.run(grid(laboratory, "reroute", kills))
    given_up = [note.text for note in outcome.of(Note) if "is given up" in note.text]
    assert given_up == ["the checkpoint of step 4 is given up: a worker was lost that wrote it"]
    assert next(saved.step for saved in outcome.of(CheckpointSaved)) == 5
    assert not outcome.of(Restored), "three nodes are too few"
    assert outcome.finish.status is RunStatus.STOPPED


def test_nothing_is_saved_beside_training_where_a_full_plan_follows(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in the step of a loss nor in the one, degraded, beside which the state for the full plan moves."""
    favouring("one step rerouted", monkeypatch)
    job = job_of(
        nodes=6, depth=2, steps=10, microbatches=9, smallest=2, policy="adaptive", source=str(laboratory.source)
    )
    kills = tuple(Kill(node=node, at="backward", step=2) for node in (0, 2))
    outcome = laboratory.run(Schedule(seed=1, job=job, kills=kills, weather=Weather(), stop_at_s=None))
    assert "warm up" in [plan.purpose for plan in outcome.of(PlanTaken)]
    assert any("the plan is degraded" in note.text for note in outcome.of(Note))
    assert saved_beside(outcome) == []
