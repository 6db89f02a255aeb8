"""Damaged messages: who sends state again, and when a connection is given up."""

from __future__ import annotations

import msgspec

from planaria.plan.plan import Plan, Transfer, WorkerId
from planaria.protocol.messages.from_worker import Damaged
from planaria.protocol.step.damage import Damages
from planaria.protocol.thresholds import MOST_BLOWS, SOON_STEPS
from tests.protocol.test_coordinator import join_all, make_machine


def damaged(source: int, step: int = 1) -> Damaged:
    return Damaged(generation=1, step=step, source=WorkerId(source), kind="state", item=0)


def moving(*targets: int) -> Plan:
    """Three owners of one group, of which worker 0 sends it to these."""
    machine = make_machine()
    join_all(machine)
    moves = tuple(Transfer(group=0, source=WorkerId(0), target=WorkerId(target)) for target in targets)
    return msgspec.structs.replace(machine.plan, transfers=moves)


def test_state_is_sent_again_by_who_held_it_when_the_plan_began() -> None:
    live = [WorkerId(worker) for worker in range(3)]
    other = Damages().resend(moving(2), WorkerId(2), damaged(0), live)
    assert other is not None
    assert other.transfer.source == 1
    same = Damages().resend(moving(1, 2), WorkerId(2), damaged(0), live)
    assert same is not None
    assert same.transfer.source == 0, "nobody else held it"


def test_a_connection_is_given_up_after_one_more_blow_than_is_borne() -> None:
    damages, target = Damages(), WorkerId(1)
    assert [damages.is_too_often(target, damaged(0)) for _ in range(MOST_BLOWS + 1)] == [*[False] * MOST_BLOWS, True]
    assert not damages.is_too_often(target, damaged(0, step=2 + SOON_STEPS)), "those were long ago"
