"""An index beside events.jsonl: sums over blocks of its steps, so that a long run's readers need not read each step.

The recorder writes a block's line once it is whole. The index is worth only what the file says: a block is taken
where the line that it ends with is that step's, told at that time; a file without an index, or with one of another
file, is read line by line.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from planaria.protocol.messages.records import StepCommitted, StepSkipped
from planaria.runtime.run_folder.lines import Lines
from planaria.runtime.run_folder.step_lines import StepLine

BLOCK_STEPS: Final = 64
"""Steps of a block, or twice as many at most: at 100,000 steps there are more blocks than a chart has points."""

INDEXED_FROM_BYTES: Final = 32 << 20
"""Bytes of an events.jsonl from which its index is used: some 100,000 steps, which are read line by line in 0.2 s."""

MOST_BETWEEN_BYTES: Final = 8 << 20
"""Most bytes that are read at once between two blocks; where more lies there, the index is left."""


class StepBlock(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Steps that follow each other in events.jsonl, after one that is in no block.

    Attributes:
        begin: bytes of the file before its first line.
        last: before its last line.
        end: up to its end.
        step: the last one; the others have the numbers before.
        count: of steps.
        time: when the last one was told, in seconds since 1970 (UTC).
        live_nodes: after it.
        num_losses: of steps that have a finite loss.
        loss: sum of their losses.
        low: least of them.
        high: greatest of them.
        tokens_per_s: sum over the steps.
        tokens: that were trained.
        useful_s: sum over the steps of their durations, each at most the time since the line before.
        duration_s: sum of the durations.
        dropped: microbatches that they left out.
        num_dropped: that the run had left out by the last one.
        cost: dollars that it had cost by then.
    """

    begin: int
    last: int
    end: int
    step: int
    count: int
    time: float
    live_nodes: int
    num_losses: int
    loss: float
    low: float
    high: float
    tokens_per_s: float
    tokens: float
    useful_s: float
    duration_s: float
    dropped: int
    num_dropped: int
    cost: float


_decode_line: Final = msgspec.json.Decoder(StepLine).decode
_decode_blocks: Final = msgspec.json.Decoder(StepBlock).decode_lines


class BlockWriter:
    """Writes the index while events.jsonl is written. Tell it of every line.

    Args:
        index: the file to append to.
        offset: bytes of events.jsonl before the next line.
    """

    def __init__(self, index: Path, offset: int) -> None:
        self._file = Lines(index)
        self._offset = offset
        self._before: tuple[int, float] | None = None
        """The step and time of the line before, where that is of a step."""
        self._steps: list[tuple[StepCommitted | StepSkipped, float, float, int]] = []
        """The block under way, step by step: record, time, useful seconds, and bytes of the file before the line."""

    def wrote(self, size_bytes: int) -> None:
        """Notes a line that is not of a step."""
        self._offset += size_bytes
        self._before = None
        self._steps.clear()

    def wrote_step(self, record: StepCommitted | StepSkipped, time_s: float, size_bytes: int) -> None:
        """Notes a line of a step."""
        before, self._before = self._before, (record.step, time_s)
        if before is None or before[0] + 1 != record.step:
            self._steps.clear()
        else:
            useful_s = min(record.duration_s, time_s - before[1])
            self._steps.append((record, time_s, useful_s, self._offset))
        self._offset += size_bytes
        # its last step is one whose loss can be shown, if there is any
        if len(self._steps) >= (BLOCK_STEPS if isinstance(record, StepCommitted) else 2 * BLOCK_STEPS):
            self._file.write(msgspec.json.encode(self._block()) + b"\n")
            self._steps.clear()

    def _block(self) -> StepBlock:
        last, time_s, _, last_at = self._steps[-1]
        records = [record for record, _, _, _ in self._steps]
        losses = [record.loss for record in records if record.loss is not None and math.isfinite(record.loss)]
        return StepBlock(
            begin=self._steps[0][3],
            last=last_at,
            end=self._offset,
            step=last.step,
            count=len(records),
            time=float(f"{time_s:.6f}"),
            live_nodes=last.live_nodes,
            num_losses=len(losses),
            loss=sum(losses),
            low=min(losses, default=0.0),
            high=max(losses, default=0.0),
            tokens_per_s=sum(record.tokens_per_s for record in records),
            tokens=sum(record.tokens_per_s * record.duration_s for record in records),
            useful_s=sum(useful_s for _, _, useful_s, _ in self._steps),
            duration_s=sum(record.duration_s for record in records),
            dropped=sum(len(record.dropped) for record in records),
            num_dropped=last.num_dropped,
            cost=last.cost if isinstance(last, StepCommitted) else 0.0,
        )

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def passages(events: Path, index: Path) -> Iterator[tuple[bytes, StepBlock | None, int]]:
    """Yields what a large events.jsonl holds up to the last block of its index; nothing of a small one, or without.

    Yields:
        (whole lines, None, bytes up to their end), or (a block's last line, the block, bytes up to its end), in order.
    """
    try:
        if events.stat().st_size < INDEXED_FROM_BYTES:
            return
        blocks = _decode_blocks(index.read_bytes().rpartition(b"\n")[0])
    except (OSError, msgspec.MsgspecError):
        return
    offset = 0
    with events.open("rb") as file:
        for block in blocks:
            if block.begin < offset:
                continue
            if block.begin - offset > MOST_BETWEEN_BYTES:
                return
            file.seek(block.last)
            line = file.read(max(0, block.end - block.last))
            if not _ends_with(block, line):
                continue
            if offset < block.begin:
                file.seek(offset)
                yield file.read(block.begin - offset), None, block.begin
            yield line, block, block.end
            offset = block.end


def _ends_with(block: StepBlock, line: bytes) -> bool:
    """Returns whether this is the line that a block ends with."""
    try:
        told = _decode_line(line)
    except msgspec.MsgspecError:
        return False
    return line.endswith(b"\n") and (told.step, told.time) == (block.step, block.time)
