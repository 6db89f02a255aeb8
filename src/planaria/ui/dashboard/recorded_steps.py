"""What workers have written of their last steps (`observe.instructions`): each byte is looked through once."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from pathlib import Path

import msgspec

from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.worker.instruction_trace import Entry
from planaria.ui.dashboard.thresholds import MOST_STEPS_OFFERED, MOST_TRACE_BYTES
from planaria.ui.plots.step_trace import trace_files

_STEP = re.compile(rb"^\[(\d+),", re.MULTILINE)


class RecordedSteps:
    """The steps that workers have written of lately. Used by one thread at a time.

    Attributes:
        steps: which ones, ascending; the last ones of many.
    """

    def __init__(self, folder: RunFolder) -> None:
        """Knows of no step yet."""
        self._folder = folder
        self._files: dict[int, _TraceFile] = {}
        self._counts: Counter[int] = Counter()
        self.steps: tuple[int, ...] = ()

    @property
    def has_any(self) -> bool:
        """Whether workers write at all."""
        return bool(self._files)

    def look(self) -> None:
        """Looks for steps that were written since the last look."""
        found = trace_files(self._folder)
        share = MOST_TRACE_BYTES // max(1, len(found))
        for worker, path in found.items():
            self._files.setdefault(worker, _TraceFile(path)).look(share)
        self._counts = Counter(step for file in self._files.values() for step in file.steps)
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
        found = {worker: tuple(file.entries(step)) for worker, file in sorted(self._files.items())}
        return {worker: entries for worker, entries in found.items() if entries}


class _TraceFile:
    """One worker's file.

    Attributes:
        steps: where in it each step begins and ends, in bytes; of a step that was trained again, the last time.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._at = -1
        self.steps: dict[int, tuple[int, int]] = {}

    def look(self, most_bytes: int) -> None:
        """Looks through the whole lines that are new, but no further back than so many bytes."""
        try:
            with self._path.open("rb") as file:
                size = self._path.stat().st_size
                skips = size - self._offset > most_bytes
                if skips:
                    self._offset, self._at, self.steps = size - most_bytes, -1, {}
                file.seek(self._offset)
                data = file.read(most_bytes)
        except OSError:
            return
        data = data[: data.rfind(b"\n") + 1]
        for match in _STEP.finditer(data):
            step, begins = int(match[1]), self._offset + match.start()
            if step != self._at:
                self._begin(step, begins)
        self._offset += len(data)
        if self._at in self.steps:
            self.steps[self._at] = self.steps[self._at][0], self._offset
        if skips and self.steps:  # the first one may have begun before
            del self.steps[min(self.steps)]

    def _begin(self, step: int, begins: int) -> None:
        if self._at in self.steps:
            self.steps[self._at] = self.steps[self._at][0], begins
        if step < self._at:
            self.steps = {earlier: where for earlier, where in self.steps.items() if earlier < step}
        while len(self.steps) >= MOST_STEPS_OFFERED:
            del self.steps[next(iter(self.steps))]
        self.steps[step] = begins, begins
        self._at = step

    def entries(self, step: int) -> list[Entry]:
        """Returns what the worker did in a step, in order."""
        if step not in self.steps:
            return []
        begins, ends = self.steps[step]
        try:
            with self._path.open("rb") as file:
                file.seek(begins)
                lines = file.read(ends - begins).splitlines()
        except OSError:
            return []
        found = []
        for line in lines:
            with contextlib.suppress(msgspec.MsgspecError):
                found.append(msgspec.json.decode(line, type=Entry))
        return found
