"""The trace that benchmarks ask for."""

from __future__ import annotations

from pathlib import Path

from planaria.plan.program.instructions import Instruction, Op
from planaria.runtime.worker.instruction_trace import Entry, Trace, read_trace


def test_what_was_noted_is_read_once_a_step_is_over(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    trace = Trace(path)
    trace.note(3, Instruction(op=Op.FORWARD, microbatch=2, born=1, first_layer=4, end_layer=6), 1.5, 2.5)
    trace.note(3, Instruction(op=Op.VOTE, epoch=1), 2.5, 3.0)
    assert not path.exists()
    trace.flush()
    trace.flush()
    forward, vote = read_trace(path)
    assert forward == Entry(3, "forward", 2, 1, 4, 1.5, 2.5, 6)
    assert (vote.op, vote.ended_s) == ("vote", 3.0)


def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    trace = Trace(path)
    trace.note(1, Instruction(op=Op.VOTE, epoch=1), 0.0, 1.0)
    trace.flush()
    path.write_bytes(path.read_bytes() + b'[1,"forw')
    assert len(list(read_trace(path))) == 1
