"""Checkpoint and morph in virtual time: the reference's bits, however often steps are trained again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from planaria.job.registry import PolicyName
from planaria.protocol.messages.records import (
    CheckpointSaved,
    Note,
    PlanTaken,
    Recovered,
    Restored,
    RunStatus,
    StepCommitted,
    Waiting,
)
from planaria.protocol.messages.to_worker import PlanMessage, StateSource
from planaria.runtime.worker.transport.state_transfer import StateTransfer
from tests.proof import rest_in_proof
from tests.runtime.worker.cluster import Crash, Kill, Visit, Weather
from tests.runtime.worker.schedules import (
    INSTRUCTIONS,
    Schedule,
    comings_and_goings,
    job_of,
    power_losses,
    restarts,
    schedule,
    shortages,
    under,
)
from tests.runtime.worker.test_cluster import Laboratory

MAKERS: tuple[Callable[[int, str], Schedule], ...] = (schedule, comings_and_goings, restarts, power_losses, shortages)
SEEDS = range(6)


@pytest.mark.proof
@pytest.mark.parametrize("make", MAKERS)
def test_random_schedules_keep_every_promise(make: Callable[[int, str], Schedule], laboratory: Laboratory) -> None:
    """The laboratory holds every run against one process training alone, to the bit."""
    laboratory.run_all(SEEDS, lambda seed, source: under(PolicyName.MORPH, make(seed, source)))


def grid(
    laboratory: Laboratory,
    kills: tuple[Kill, ...],
    visits: tuple[Visit, ...] = (),
    every: int = 2,
    microbatches: int = 9,
    when_exhausted: str = "exit",
) -> Schedule:
    """Three pipelines of two stages."""
    job = job_of(
        nodes=6,
        depth=2,
        steps=8,
        microbatches=microbatches,
        smallest=2,
        policy="morph",
        source=str(laboratory.source),
        checkpoint_every=every,
        when_exhausted=when_exhausted,
    )
    return Schedule(seed=1, job=job, kills=kills, visits=visits, weather=Weather(), stop_at_s=None)


def is_symmetric(plan: PlanTaken) -> bool:
    return len({tuple((first, end) for _, first, end in stages) for stages in plan.pipelines}) == 1


@pytest.mark.parametrize("at", rest_in_proof([at for at in INSTRUCTIONS if at != "transfer"], kept=3))
def test_a_kill_at_each_instruction(at: str, laboratory: Laboratory) -> None:
    """In a step that a checkpoint does not lie right before: the job goes back, nobody finishes the step."""
    outcome = laboratory.run(grid(laboratory, (Kill(node=1, at=at, step=6),)))
    assert outcome.finish.status is RunStatus.COMPLETED
    (restored,) = outcome.of(Restored)
    (recovered,) = outcome.of(Recovered)
    recovery = recovered.recovery
    assert recovery.steps_redone == restored.from_step - restored.to_step > 0
    assert recovery.microbatches_rerun == recovery.microbatches_per_step
    assert recovery.ready_ms is not None
    assert 0 < recovery.ready_ms < recovery.resume_ms
    start, restore = outcome.of(PlanTaken)
    assert (start.purpose, restore.purpose) == ("start", "restore")
    assert restore.step == restored.to_step + 1
    assert all(map(is_symmetric, (start, restore)))
    committed = [record.step for record in outcome.of(StepCommitted)]
    assert len(committed) == 8 + recovery.steps_redone


def test_before_the_first_checkpoint_the_job_begins_anew(laboratory: Laboratory) -> None:
    outcome = laboratory.run(grid(laboratory, (Kill(node=1, at="backward", step=3),), every=5))
    assert outcome.finish.status is RunStatus.COMPLETED
    assert [(record.from_step, record.to_step) for record in outcome.of(Restored)] == [(2, 0)]


@pytest.mark.parametrize("delay_s", rest_in_proof([0.0, 2e-3, 6e-3]))
@pytest.mark.parametrize("nth", [1, 3])
def test_a_kill_during_the_restore(nth: int, delay_s: float, laboratory: Laboratory) -> None:
    """Of another node, when so many have their state again; and the coordinator may die there too."""
    again = Kill(node=3, at="after Restored", delay_s=delay_s)
    kills = (Kill(node=1, at="backward", step=6), again)
    plain = grid(laboratory, kills)
    for crashes in ((), (Crash(after="Restored", commands=nth),)):
        outcome = laboratory.run(replace(plain, crashes=crashes))
        assert outcome.finish.status is RunStatus.COMPLETED
        assert len(outcome.of(Restored)) >= 1
        assert sum(record.recovery.steps_redone for record in outcome.of(Recovered)) >= 1


@pytest.mark.parametrize("node", [0, 1])
def test_a_kill_while_a_checkpoint_is_written(node: int, laboratory: Laboratory) -> None:
    """It is given up, and the one before it is what the job goes back to."""
    outcome = laboratory.run(grid(laboratory, (Kill(node=node, at="apply", step=4),)))
    assert outcome.finish.status is RunStatus.COMPLETED
    assert any("is given up" in note.text for note in outcome.of(Note))
    (restored,) = outcome.of(Restored)
    before = outcome.records[: outcome.records.index(restored)]
    assert restored.to_step == max(record.step for record in before if isinstance(record, CheckpointSaved)) == 2


def test_nodes_that_come_make_a_wider_grid_and_nothing_is_trained_twice(laboratory: Laboratory) -> None:
    """One row more, once there are two nodes for it; their state moves beside a step."""
    visits = tuple(Visit(node=node, after="StepCommitted", nth=2) for node in (6, 7))
    outcome = laboratory.run(grid(laboratory, (), visits, microbatches=16))
    assert outcome.finish.status is RunStatus.COMPLETED
    assert not outcome.of(Restored)
    plans = outcome.of(PlanTaken)
    assert [plan.purpose for plan in plans][:3] == ["start", "warm up", "reconfigure"]
    assert [len(plan.pipelines) for plan in plans if plan.purpose != "warm up"] == [3, 4]


def test_one_node_that_comes_stays_idle_and_takes_a_lost_place_later(laboratory: Laboratory) -> None:
    visits = (Visit(node=6, after="StepCommitted", nth=1),)
    outcome = laboratory.run(grid(laboratory, (Kill(node=1, at="forward", step=6),), visits))
    start, restore = outcome.of(PlanTaken)
    assert restore.purpose == "restore"
    assert len(restore.pipelines) == len(start.pipelines) == 3
    assert 6 in {worker for stages in restore.pipelines for worker, _, _ in stages}


def test_a_node_that_gives_notice_hands_over_its_state(laboratory: Laboratory) -> None:
    visits = (Visit(node=1, after="StepCommitted", nth=2, grace_s=5.0),)
    outcome = laboratory.run(grid(laboratory, (), visits))
    assert outcome.finish.status is RunStatus.COMPLETED
    assert not outcome.of(Restored)
    assert all(map(is_symmetric, outcome.of(PlanTaken)))


def test_too_few_nodes_for_f_plus_one_replicas_go_on_and_say_so(laboratory: Laboratory) -> None:
    """Until there are none for one pipeline; then the job waits, with the state of the last commit."""
    kills = tuple(Kill(node=node, at="backward", step=3 + node) for node in range(5))
    outcome = laboratory.run(grid(laboratory, kills, when_exhausted="wait"))
    assert any("the plan is degraded" in note.text for note in outcome.of(Note))
    assert outcome.of(Waiting)
    assert outcome.finish.status is RunStatus.STOPPED


def test_what_was_weighed_is_recorded(laboratory: Laboratory) -> None:
    outcome = laboratory.run(grid(laboratory, (Kill(node=1, at="backward", step=6),)))
    _, restore = outcome.of(PlanTaken)
    best, *others = restore.candidates
    assert best.name == "grid 2 x 2"
    assert all(other.is_degraded or other.samples_per_s <= best.samples_per_s for other in others)
    assert restore.estimated_transition_s == best.transition_s > 0


def test_a_node_that_was_idle_while_the_job_went_back_forgets_what_it_held(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five nodes make two rows, so one is idle through the restore; a sixth makes a third row, with the idle one."""
    forgot = []
    begin = StateTransfer.begin

    def watched(self: StateTransfer, message: PlanMessage, *, forgets: bool) -> None:
        had = bool(self._holdings.replicas)
        begin(self, message, forgets=forgets)
        if forgets and message.source is StateSource.LIVE:
            assert not self._holdings.replicas
            forgot.append(had)

    monkeypatch.setattr(StateTransfer, "begin", watched)
    kill = Kill(node=0, at="backward", step=4)
    came = Visit(node=6, after="Restored", nth=1, delay_s=0.0, grace_s=None)
    laboratory.run(grid(laboratory, (kill,), (came,)))
    assert True in forgot, "nobody had anything of before"
    assert False in forgot, "nobody came"
