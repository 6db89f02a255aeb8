"""What a worker has done of a step, and what is left."""

from __future__ import annotations

import pytest

from planaria.plan.program.instructions import Instruction, Op
from planaria.protocol.worker.progress import Progress

PROGRAM = (
    Instruction(op=Op.FORWARD, microbatch=0, born=1, first_layer=0, end_layer=2),
    Instruction(op=Op.SEND_ACTIVATION, microbatch=0, born=1, first_layer=2, peer=1),
    Instruction(op=Op.RECV_GRADIENT, microbatch=0, born=1, first_layer=2, peer=1),
    Instruction(op=Op.BACKWARD, microbatch=0, born=1, first_layer=0, end_layer=2, counted=(0, 1)),
    Instruction(op=Op.SEND_GRADIENT, microbatch=0, born=1, first_layer=0, peer=2),
    Instruction(op=Op.VOTE, epoch=1),
    Instruction(op=Op.APPLY),
)


@pytest.mark.parametrize("done_before", [0, 2])
def test_peers_wait_until_the_last_send_is_done(done_before: int) -> None:
    """Also under a plan with which the step goes on."""
    progress = Progress()
    progress.begin(PROGRAM)
    for _ in range(done_before):
        progress.finish()
    progress.go_on(PROGRAM)
    waits = []
    while (instruction := progress.next) is not None:
        waits.append((instruction.op, progress.has_sends))
        progress.finish()
    assert waits == [(instruction.op, at <= 4) for at, instruction in enumerate(PROGRAM[:-1]) if at >= done_before], (
        "who applies is told to"
    )
    assert not progress.has_sends


def test_another_step_begins_with_nothing_done() -> None:
    progress = Progress()
    progress.begin(PROGRAM)
    progress.note_forward((0, 1), 0)
    progress.finish()
    assert progress.next == PROGRAM[1]
    assert progress.forwards_left(PROGRAM[0]) == (range(1, 2),)
    progress.begin(PROGRAM)
    assert progress.next == PROGRAM[0]
    assert progress.forwards_left(PROGRAM[0]) == (range(2),)
