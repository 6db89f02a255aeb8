"""What workers have written of their last steps (`observe.instructions`): any number of steps, read in bounded time."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import msgspec

from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.worker.instruction_trace import Entry
from planaria.ui.dashboard.thresholds import MOST_STEPS_OFFERED, MOST_TRACE_BYTES
from planaria.ui.plots.step_trace import trace_files

_STEP = re.compile(rb"^\[(\d+),", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Tail:
    """The end of one worker's file: its bytes, and where in them each step begins and ends."""

    data: bytes
    steps: dict[int, tuple[int, int]]


class RecordedSteps:
    """The steps that workers have written of lately.

    Attributes:
        has_any: whether workers write at all.
        steps: which ones, ascending; the last ones of many.
    """

    def __init__(self, folder: RunFolder) -> None:
        """Reads the ends of the workers' files."""
        files = trace_files(folder)
        share = MOST_TRACE_BYTES // max(1, len(files))
        self.has_any = bool(files)
        self._tails = {worker: _tail(file, share) for worker, file in files.items()}
        self._counts = Counter(step for tail in self._tails.values() for step in tail.steps)
        self.steps = tuple(sorted(self._counts)[-MOST_STEPS_OFFERED:])

    @property
    def newest(self) -> int | None:
        """The last step of which as many workers have written as of the one before it; None: there is none."""
        for before, step in reversed(list(zip(self.steps, self.steps[1:], strict=False))):
            if self._counts[step] >= self._counts[before]:
                return step
        return self.steps[0] if self.steps else None

    def entries(self, step: int) -> dict[int, tuple[Entry, ...]]:
        """Returns what each worker did in a step, in order; workers that have written nothing of it are left out."""
        found: dict[int, tuple[Entry, ...]] = {}
        for worker, tail in self._tails.items():
            if step in tail.steps:
                start, end = tail.steps[step]
                found[worker] = tuple(_decoded(tail.data[start:end]))
        return found


def _decoded(lines: bytes) -> list[Entry]:
    found = []
    for line in lines.splitlines():
        with contextlib.suppress(msgspec.MsgspecError):
            found.append(msgspec.json.decode(line, type=Entry))
    return found


def _tail(file: Path, most_bytes: int) -> _Tail:
    """Reads the end of a file: whole lines, and of a step that was trained again, those of the last time."""
    try:
        with file.open("rb") as opened:
            offset = max(0, file.stat().st_size - most_bytes)
            opened.seek(offset)
            data = opened.read(most_bytes)
    except OSError:
        data, offset = b"", 0
    data = data[: data.rfind(b"\n") + 1]
    steps: dict[int, tuple[int, int]] = {}
    at = -1
    for match in _STEP.finditer(data):
        step = int(match[1])
        if step != at:
            if at in steps:
                steps[at] = steps[at][0], match.start()
            if step < at:
                steps = {earlier: where for earlier, where in steps.items() if earlier < step}
            steps[step] = match.start(), len(data)
            at = step
    if offset and steps:  # the first one may have begun before
        del steps[min(steps)]
    return _Tail(data, steps)
