"""The runs of a folder, read as they grow: what was read is kept as views, and a look reads only what is new."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from planaria.job.errors import UserError
from planaria.job.parse import job_from_json
from planaria.protocol.messages.records import AnyRecord, StepCommitted, StepSkipped
from planaria.runtime.run_folder.overview import RunOverview, find_runs, overview
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.run_folder.step_blocks import StepBlock, passages
from planaria.runtime.run_folder.step_lines import PIECE_BYTES, StepLine, decode_steps, parts_of
from planaria.ui.dashboard.schedule import Schedules
from planaria.ui.dashboard.view import RunView

_LOOK_S: Final = 0.4
"""Most seconds that one look reads; a file with a million steps is shown while it is read."""

MOST_VIEWS: Final = 32
"""Runs that are kept as views; the one looked at longest ago is read again when it is wanted."""


class Tail:
    """The lines that a file got since the last look: each once, and a half-written last one when it is whole."""

    def __init__(self, path: Path) -> None:
        """Follows a file, which need not exist yet."""
        self._path = path
        self._offset = 0
        self._file: int | None = None

    @property
    def offset(self) -> int:
        """Bytes read so far, up to the end of a line."""
        return self._offset

    def pass_to(self, offset: int) -> None:
        """Takes the file for read up to here: the end of a line."""
        self._offset = offset

    def size(self) -> int:
        """Returns the file's bytes now; 0: there is none."""
        try:
            return self._path.stat().st_size
        except OSError:
            return 0

    def lines(self) -> bytes | None:
        """Returns some of the new whole lines, in order; b"": there are no more now; None: it is another file now."""
        try:
            with self._path.open("rb") as file:
                status = self._path.stat()
                is_other = self._file is not None and status.st_ino != self._file
                if is_other or status.st_size < self._offset:
                    self._file, self._offset = None, 0
                    return None
                self._file = status.st_ino
                file.seek(self._offset)
                piece = file.read(PIECE_BYTES)
                if len(piece) == PIECE_BYTES and b"\n" not in piece:
                    piece += file.readline()
        except OSError:
            return b""
        whole = piece[: piece.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole


class RunReader:
    """One run, read as it grows. Several threads may look.

    Attributes:
        folder: of the run.
        schedules: of its steps.
    """

    def __init__(self, folder: RunFolder) -> None:
        """Opens a run. Raises UserError: its job cannot be read."""
        self.folder = folder
        try:
            self._job = job_from_json(folder.job.read_bytes())
        except (OSError, msgspec.MsgspecError) as error:
            raise UserError(f"run folder {folder.path} cannot be read: {error}. Give another.") from None
        self.schedules = Schedules(folder, self._job)
        self._lock = threading.Lock()
        self._decode = msgspec.json.Decoder(AnyRecord).decode
        self._restart()

    def _restart(self) -> None:
        self._tail = Tail(self.folder.events)
        self._passages = passages(self.folder.events, self.folder.step_blocks)
        self._view = RunView(self._job)
        self._num_unknown = 0
        self._epoch = time.monotonic_ns()

    def look(self, known: tuple[int, int, int, int] | None = None) -> tuple[dict[str, Any], tuple[int, int, int, int]]:
        """Returns what is new since what is known, and what is known then. None: nothing is known."""
        with self._lock:
            self._read()
            view, series = self._view, self._view.series
            mark = (self._epoch, view.changes, series.epoch, len(series))
            found: dict[str, Any] = {"now": view.now(), "read": self._share_read(), "unknown": self._num_unknown}
            found["run"] = msgspec.to_builtins(overview(self.folder))
            if known is None or known[:2] != mark[:2]:
                found["details"] = view.details()
            # The last point may have grown, so it is told again.
            goes_on = known is not None and (known[0], known[2]) == (mark[0], mark[2])
            first = max(0, known[3] - 1) if known is not None and goes_on else 0
            found["series"] = {"first": first, "rows": series.rows(first)}
            return found, mark

    def whole(self) -> dict[str, Any]:
        """Returns everything, once the file is read to its end."""
        with self._lock:
            self._read(math.inf)
        return self.look()[0]

    def _share_read(self) -> float:
        size = self._tail.size()
        return 1.0 if size - self._tail.offset < 1 << 16 else self._tail.offset / size

    def _read(self, most_s: float = _LOOK_S) -> None:
        until = time.monotonic() + most_s
        for lines, block, offset in self._passages:
            if block is None:
                self._add_lines(lines)
            else:
                self._add(lines, block)
            self._tail.pass_to(offset)
            if time.monotonic() >= until:
                return
        while True:
            found = self._tail.lines()
            if found is None:
                self._restart()
                continue
            self._add_lines(found)
            if not found or time.monotonic() >= until:
                return

    def _add_lines(self, lines: bytes) -> None:
        for part, are_steps in parts_of(lines) if lines else ():
            if are_steps:
                self._add_steps(part)
            else:
                self._add(part)

    def _add_steps(self, lines: bytes) -> None:
        """Adds steps that follow each other: the first and the last one as records, those between them together."""
        first, last = lines.find(b"\n") + 1, lines.rfind(b"\n", 0, -1) + 1
        between: Sequence[StepLine] = ()
        if first < last:
            with contextlib.suppress(msgspec.MsgspecError):  # else one by one, and that one is counted
                between = decode_steps(memoryview(lines)[first:last])
        if not between:
            for line in lines.splitlines():
                self._add(line)
            return
        self._add(lines[:first])
        self._view.add_steps(between)
        self._add(lines[last:])

    def _add(self, line: bytes, block: StepBlock | None = None) -> None:
        """Adds the record of a line; `block`: and the steps before it."""
        try:
            # {"time":1795690506.600874, ...: the recorder writes it first
            time_s = float(line[8 : line.index(b",")])
            record = self._decode(line)
            if block is not None and isinstance(record, StepCommitted | StepSkipped):
                self._view.add_block(block, record)
            else:
                self._view.add(record, time_s)
        except (ValueError, LookupError):  # of a newer Planaria, or no record
            self._num_unknown += 1


class Runs:
    """The runs of a folder, or the one whose folder it is, by name."""

    def __init__(self, place: Path) -> None:
        """Looks into the folder. Raises UserError: it does not exist."""
        self.place = place
        self.is_one = RunFolder(place).job.is_file()
        list(find_runs(place))
        self._readers: dict[str, RunReader] = {}
        self._lock = threading.Lock()

    def table(self) -> list[RunOverview]:
        """Returns the runs at a glance, the one last written first; those that cannot be read are left out."""
        found = []
        for folder in find_runs(self.place):
            try:
                found.append(overview(folder))
            except UserError:
                continue
        return sorted(found, key=lambda run: run.changed_s, reverse=True)

    def reader(self, name: str) -> RunReader:
        """Returns the reader of a run. Raises UserError: there is no such run."""
        with self._lock:
            reader = self._readers.pop(name, None)
            if reader is None:
                names = {folder.path.resolve().name: folder for folder in find_runs(self.place)}
                if name not in names:
                    raise UserError(f"there is no run {name} in {self.place}.")
                reader = RunReader(names[name])
            self._readers[name] = reader
            while len(self._readers) > MOST_VIEWS:
                del self._readers[next(iter(self._readers))]
            return reader
