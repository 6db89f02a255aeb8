"""Tells the lines of events.jsonl that are of steps, nearly all of a long run's, from the others, many at a time.

A step's line is known by its beginning alone. One that does not look as the recorder writes it is among the others,
and read as they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

PIECE_BYTES: Final = 1 << 20
"""Bytes read at a time: what a reader holds of a file of any length."""

_FEW_BYTES: Final = 1 << 15
"""Bytes below which lines are looked at one by one: that is quicker then."""

_BEGINNING: Final = b'{"time":1000000000.000000,'
_STEP: Final = b'"event":"step_'


class StepLine(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a line of a step has that is added up over many; see `StepCommitted`.

    Attributes:
        time: when it was told, in seconds since 1970 (UTC).
    """

    time: float
    step: int
    loss: float | None
    live_nodes: int
    duration_s: float
    tokens_per_s: float
    dropped: tuple[int, ...] = ()
    num_dropped: int = 0
    cost: float = 0.0


decode_steps: Final = msgspec.json.Decoder(StepLine).decode_lines
"""Decodes lines of steps. Raises msgspec.MsgspecError where one is something else."""


def _is_step(line: bytes) -> bool:
    return line.startswith(_STEP, len(_BEGINNING))


def parts_of(lines: bytes) -> Iterator[tuple[bytes, bool]]:
    """Yields the parts of whole lines, in order: (lines of steps that follow each other, True), or (a line, False)."""
    if len(lines) < _FEW_BYTES:
        for are_steps, some in itertools.groupby(lines.splitlines(keepends=True), _is_step):
            if are_steps:
                yield b"".join(some), True
            else:
                yield from zip(some, itertools.repeat(False))
        return
    import numpy as np  # commands for a run are quick without it

    data, step = np.frombuffer(lines, np.uint8), np.frombuffer(_STEP, np.uint8)
    ends = np.flatnonzero(data == ord("\n")) + 1
    starts = np.concatenate(([0], ends[:-1]))
    is_step = np.zeros(len(ends), bool)
    could = ends - starts > len(_BEGINNING) + len(_STEP)
    windows = np.lib.stride_tricks.sliding_window_view(data, len(_STEP)) if could.any() else data[:0]
    is_step[could] = (windows[starts[could] + len(_BEGINNING)] == step).all(axis=1) if could.any() else False
    others = np.flatnonzero(~is_step)
    begin = 0
    for first, end in zip(starts[others].tolist(), ends[others].tolist(), strict=True):
        if begin < first:
            yield lines[begin:first], True
        yield lines[first:end], False
        begin = end
    if begin < len(lines):
        yield lines[begin:], True


def parts_of_file(path: Path, offset: int = 0) -> Iterator[tuple[bytes, bool]]:
    """Yields the parts of a file from an offset on, as `parts_of`; a last line cut short by a crash is left out."""
    rest = b""
    with path.open("rb") as file:
        file.seek(offset)
        while piece := file.read(PIECE_BYTES):
            piece = rest + piece
            end = piece.rfind(b"\n") + 1
            rest = piece[end:]
            yield from parts_of(piece[:end])
