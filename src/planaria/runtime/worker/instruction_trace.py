"""Traces what a worker did when, for benchmarks: one line an instruction. It changes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from planaria.plan.program.instructions import Instruction


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """An instruction that ran to its end: step, operation, microbatch, birth of its route, first layer; when it began
    and ended (monotonic seconds of this machine); end of its layers, and group of a sum. Traces of before have no
    last two."""

    step: int
    op: str
    microbatch: int
    born: int
    first_layer: int
    began_s: float
    ended_s: float
    end_layer: int = -1
    group: int = -1


class Trace:
    """The trace of one worker. Lines are written when a step is over; those of a killed worker may be lacking, and
    those that a full disk does not take."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: list[bytes] = []

    def note(self, step: int, instruction: Instruction, began_s: float, ended_s: float) -> None:
        i = instruction
        entry = Entry(step, i.op.value, i.microbatch, i.born, i.first_layer, began_s, ended_s, i.end_layer, i.group)
        self._entries.append(msgspec.json.encode(entry))

    def flush(self) -> None:
        if self._entries:
            with contextlib.suppress(OSError), self._path.open("ab") as file:
                file.write(b"\n".join(self._entries) + b"\n")
            self._entries.clear()


def read_trace(path: Path) -> Iterator[Entry]:
    """Yields every whole line of a trace."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield msgspec.json.decode(line, type=Entry)
