"""Where a run's time went, told from its records."""

from __future__ import annotations

import pytest

from planaria.protocol.messages.records import (
    NodeJoined,
    NodeLost,
    PlanMeasured,
    PlanTaken,
    Record,
    Recovered,
    Recovery,
    Restored,
    RunEnded,
    RunStatus,
    Waiting,
)
from planaria.protocol.step.time_accounting import Split, TimeAccount
from tests.protocol.told import committed


def plan(step: int, purpose: str) -> PlanTaken:
    return PlanTaken(
        generation=step, step=step, purpose=purpose, policy="morph", reason="", pipelines=(), microbatches=(),
        estimated_step_s=1.0, transfer_bytes=0, plan_hash="",
    )  # fmt: skip


def lost(step: int, detect_ms: float | None = None) -> NodeLost:
    return NodeLost(node=1, step=step, cause="killed", live_nodes=1, detect_ms=detect_ms)


def recovered(step: int, resume_ms: float, ready_ms: float | None = None, redone: int = 0) -> Recovered:
    return Recovered(
        recovery=Recovery(
            step=step, cause="killed", lost_nodes=(1,), policy="morph", reason="", detect_ms=None, decide_ms=0.0,
            transfer_bytes=0, resume_ms=resume_ms, microbatches_rerun=0, microbatches_per_step=1, steps_redone=redone,
            ready_ms=ready_ms,
        )
    )  # fmt: skip


END = RunEnded(
    status=RunStatus.COMPLETED, steps=4, message="", skipped_microbatches=0, duplicated_microbatches=0
)  # fmt: skip


def split_of(*happenings: tuple[Record, float]) -> Split:
    split = TimeAccount(happenings).split
    whole = sum((split.useful, split.redone, split.recovering, split.waiting, split.other))
    assert whole == pytest.approx(happenings[-1][1] - happenings[0][1])
    return split


BEGIN: tuple[tuple[Record, float], ...] = (
    (NodeJoined(node=0, live_nodes=1), 0.0), (plan(1, "start"), 5.0), (committed(1), 6.0), (committed(2), 7.0),
)  # fmt: skip


def test_a_run_without_losses_is_useful_but_for_its_start_and_end() -> None:
    split = split_of(*BEGIN, (committed(3), 8.0), (committed(4), 9.5), (END, 10.0))
    assert split == Split(useful=4.0, redone=0.0, recovering=0.0, waiting=0.0, other=6.0)


def test_what_a_restore_undoes_was_wasted_and_what_lies_before_the_state_is_there_was_recovery() -> None:
    """Steps 1 and 2 go, and 0.4 s of step 3; the fault is at 7.4, seen at 7.5; all have their state at 8.4."""
    happenings = (
        *BEGIN,
        (lost(3, detect_ms=100.0), 7.5),
        (Restored(from_step=2, to_step=0, reason=""), 7.6),
        (plan(1, "restore"), 7.6),
        (committed(1, 1.8), 9.4),
        (recovered(3, 2000.0, ready_ms=1000.0, redone=2), 9.4),
        (committed(2), 10.4),
        (END, 10.4),
    )
    split = split_of(*happenings)
    assert split.redone == pytest.approx(2.4)
    assert split.recovering == pytest.approx(1.0)
    assert split.useful == pytest.approx(2.0)
    assert TimeAccount(happenings).steps_redone == 2


def test_a_block_of_steps_counts_as_each_of_its_steps_would() -> None:
    """After a loss without a recovery too; and some of it are trained again."""
    happenings = (*BEGIN, (lost(3), 7.5), (committed(3), 9.0))
    one, many = TimeAccount(happenings), TimeAccount(happenings)
    one.note_block(6, 3, 3.0, 12.0)
    many.note_steps([4, 5, 6], [1.0, 1.0, 1.0], [10.0, 11.0, 12.0])
    for account in (one, many):
        account.note(Restored(from_step=6, to_step=4, reason=""), 12.5)
    assert one.split == many.split
    assert one.split.useful == pytest.approx(2 + 2 + 1)
    assert one.steps_redone == 2


def test_a_step_that_survivors_finish_costs_what_it_took_longer_than_usual() -> None:
    split = split_of(
        *BEGIN,
        (lost(3), 7.5),
        (plan(3, "finish step"), 7.6),
        (committed(3, 1.7), 8.7),
        (recovered(3, 1200.0), 8.7),
        (plan(4, "reconfigure"), 8.7),
        (committed(4, 1.5), 10.2),
        (PlanMeasured(generation=4, steps=3, estimated_step_s=1.0, measured_step_s=1.2, measured_transition_s=0.3), 10.2),  # noqa: E501
        (END, 10.2),
    )  # fmt: skip
    assert split.recovering == pytest.approx(0.7 + 0.3)
    assert split.redone == 0
    assert split.useful == pytest.approx(4.2)


def test_a_step_that_is_committed_in_spite_of_a_loss_and_undone() -> None:
    """All votes were in. The fault at 7.5, the commit at 8.0; all have their state at 8.6."""
    happenings = (
        *BEGIN,
        (lost(3), 7.5),
        (committed(3), 8.0),
        (Restored(from_step=3, to_step=2, reason=""), 8.0),
        (plan(3, "restore"), 8.0),
        (committed(3, 1.6), 9.6),
        (recovered(3, 500.0, ready_ms=1100.0, redone=1), 9.6),
        (END, 9.6),
    )
    split = split_of(*happenings)
    assert split.redone == pytest.approx(1.0)
    assert split.recovering == pytest.approx(0.6)
    assert split.useful == pytest.approx(3.0)
    assert TimeAccount(happenings).steps_redone == 1


def test_a_second_loss_during_the_restore_is_one_recovery() -> None:
    split = split_of(
        *BEGIN,
        (lost(3), 7.5),
        (Restored(from_step=2, to_step=1, reason=""), 7.5),
        (plan(2, "restore"), 7.5),
        (lost(2), 7.8),
        (Restored(from_step=1, to_step=1, reason=""), 7.9),
        (plan(2, "restore"), 7.9),
        (committed(2, 1.3), 9.2),
        (recovered(3, 1700.0, ready_ms=700.0, redone=1), 9.2),
        (END, 9.2),
    )
    assert split.redone == pytest.approx(1.5)
    assert split.recovering == pytest.approx(0.7)
    assert split.useful == pytest.approx(2.0)


def test_waiting_for_nodes_is_neither_work_nor_recovery() -> None:
    split = split_of(
        *BEGIN,
        (lost(3), 7.5),
        (Waiting(step=3, live_nodes=1, reason=""), 7.7),
        (Restored(from_step=2, to_step=2, reason=""), 20.0),
        (plan(3, "restore"), 20.0),
        (committed(3, 1.2), 21.2),
        (recovered(3, 13_700.0, ready_ms=12_700.0), 21.2),
        (END, 21.2),
    )
    assert split.waiting == pytest.approx(12.3)
    assert split.recovering == pytest.approx(0.4)
    assert split.redone == pytest.approx(0.5)
    assert split.useful == pytest.approx(3.0)


def test_the_loss_of_a_node_that_nobody_misses_costs_nothing() -> None:
    split = split_of(*BEGIN, (lost(3), 7.5), (committed(3), 8.0), (committed(4), 9.0), (END, 9.0))
    assert split == Split(useful=4.0, redone=0.0, recovering=0.0, waiting=0.0, other=5.0)


def test_a_run_that_ends_in_a_recovery_and_one_that_is_resumed() -> None:
    """The first part's last steps were not saved; between the parts nobody trained."""
    first = (*BEGIN, (lost(3), 7.5), (END, 8.5))
    assert split_of(*first).recovering == pytest.approx(1.0)
    assert split_of(*first).redone == pytest.approx(0.5)
    spent = TimeAccount(
        (*first, (NodeJoined(node=0, live_nodes=1), 100.0), (plan(2, "start"), 101.0), (committed(2), 102.0))
    )
    assert spent.split == Split(useful=2.0, redone=1.5, recovering=1.0, waiting=0.0, other=6.0)
    assert spent.steps_redone == 1
