"""What transitions took is learnt from the workers' answers."""

from __future__ import annotations

import msgspec
import pytest

from planaria.plan.plan import Group, Pipeline, Plan, Stage, Transfer, WorkerId
from planaria.plan.thresholds import CHANGE_S, RESTORE_S
from planaria.protocol.planning.transition_times import TransitionTimes
from planaria.protocol.thresholds import UNMOVED_S

WORKERS = (WorkerId(0), WorkerId(1))
STILL = Plan(
    generation=1,
    num_layers=2,
    num_microbatches=1,
    devices_per_node=1,
    groups=(Group(layers=(0,), size_bytes=1), Group(layers=(1,), size_bytes=1)),
    pipelines=(Pipeline(stages=tuple(Stage(worker=at, first_layer=at, end_layer=at + 1) for at in WORKERS)),),
    routes=(),
    sync_epochs=(1, 1),
)
MOVES = msgspec.structs.replace(STILL, transfers=(Transfer(group=0, source=WORKERS[0], target=WORKERS[1]),))


def take(
    moving: TransitionTimes, seconds: float, moves_s: float = 0.0, *, decided_s: float = 0.0, restore: bool = False
) -> None:
    plan = MOVES if moves_s else STILL
    moving.begin(plan, 100.0, moves_s, None if moves_s else 0.0, is_restore=restore)
    moving.decided(decided_s)
    moving.ready(WORKERS[0], 100.0 + seconds / 2)
    moving.ready(WORKERS[1], 100.0 + seconds)
    moving.ready(WORKERS[1], 200.0)


def test_constants_until_something_is_measured() -> None:
    moving = TransitionTimes()
    assert (moving.change_s, moving.transfer_stretch, moving.restore_s) == (CHANGE_S, 1.0, RESTORE_S)


def test_a_change_is_what_the_first_step_was_longer_not_what_is_a_part_of_any() -> None:
    moving = TransitionTimes()
    take(moving, 0.13)
    assert moving.change_s == CHANGE_S, "the optimizer's step and messages are in it"
    moving.changed(STILL.generation, 0.03)
    assert moving.change_s == pytest.approx(0.03)


def test_state_that_lay_there_a_while_was_not_under_way_for_so_long() -> None:
    """The last one to say that he has it may not be the last to have had it."""
    moving = TransitionTimes()
    moving.begin(MOVES, 100.0, 0.1, 0.0, is_restore=False)
    moving.ready(WORKERS[0], 100.0 + UNMOVED_S + 0.2)
    moving.ready(WORKERS[1], 100.0 + UNMOVED_S + 0.1)
    assert moving.transfer_stretch == pytest.approx(2.0)


def test_what_was_to_be_waited_for_is_no_part_of_a_change() -> None:
    moving = TransitionTimes()
    moving.begin(MOVES, 100.0, 0.5, 0.1, is_restore=False)
    moving.changed(MOVES.generation, 0.13)
    assert moving.change_s == pytest.approx(0.03)


def test_a_change_of_which_nobody_knows_what_is_to_be_waited_for_tells_nothing() -> None:
    moving = TransitionTimes()
    take(moving, 0.2, moves_s=0.1)
    moving.changed(MOVES.generation, 0.13)
    take(moving, 7.0, restore=True)
    moving.changed(STILL.generation, 0.13)
    assert moving.change_s == CHANGE_S


def test_links_are_as_slow_as_state_is_under_way() -> None:
    moving = TransitionTimes()
    take(moving, 0.12, decided_s=0.1)
    for seconds in (0.22, 0.42, 0.42):
        take(moving, seconds, moves_s=0.1)
    assert moving.transfer_stretch == pytest.approx(4.0)
    take(moving, 3.0, moves_s=1e-4)
    assert moving.transfer_stretch == pytest.approx(4.0), "too little moved to tell"


def test_a_restore_is_another_thing() -> None:
    moving = TransitionTimes()
    take(moving, 7.0, restore=True)
    assert (moving.restore_s, moving.change_s) == (7.0, CHANGE_S)


def test_where_somebody_is_lost_nothing_is_measured() -> None:
    moving = TransitionTimes()
    moving.begin(MOVES, 100.0, 1.0, None, is_restore=False)
    moving.ready(WORKERS[0], 100.1)
    moving.stop()
    moving.ready(WORKERS[1], 109.0)
    assert moving.transfer_stretch == 1.0
