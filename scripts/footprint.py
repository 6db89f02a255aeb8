"""What the processes of a long run take of a machine, sampled, and what of that has grown: nothing should.

Counted are this process and all that come of it. A run's lines (events, metrics, logs) grow by design, and are left
out.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

EVERY_S = 2.0
"""Seconds between two samples."""

GROWTH = 1.25
"""What the last quarter's median may be, over that of the second quarter: nodes come and go. Not measured."""

FEW_SAMPLES = 40
"""Fewer samples tell nothing of growth. Not measured."""

SLACK = {
    "shared_files": 8.0,
    "shared_bytes": float(1 << 20),
    "journal_bytes": float(1 << 20),
    "disk_bytes": float(1 << 22),
}
"""What may come on top: of what is little or saw-toothed by design, as a journal that is thinned now and then."""

BY_DESIGN = ("events.jsonl", "metrics.jsonl", "step-blocks.jsonl", "journal.sqlite", "journal.sqlite-wal", "logs")
"""What of a run folder is not counted as disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What is taken at one moment; of processes the mean of each, as their number goes up and down with the nodes."""

    processes: float
    threads_each: float
    descriptors_each: float
    resident_bytes_each: float
    shared_files: float
    shared_bytes: float
    journal_bytes: float
    disk_bytes: float


class Footprint(threading.Thread):
    """Samples until it is stopped.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.samples: list[Sample] = []
        self._folder = folder
        self._is_over = threading.Event()

    def run(self) -> None:
        while not self._is_over.wait(EVERY_S):
            with contextlib.suppress(OSError):  # a file was removed while it was looked at
                self.samples.append(sampled(self._folder))

    def stop(self) -> None:
        self._is_over.set()
        self.join()


def sampled(folder: Path) -> Sample:
    """Returns what is taken now."""
    own = _descendants(os.getpid())
    threads = [len(_listed(Path(f"/proc/{pid}/task"))) for pid in own]
    descriptors = [len(_listed(Path(f"/proc/{pid}/fd"))) for pid in own]
    resident = [_resident_bytes(pid) for pid in own]
    shared = [path for path in _listed(Path("/dev/shm")) if not path.is_dir()]
    kept = [path for path in folder.rglob("*") if not set(path.relative_to(folder).parts) & set(BY_DESIGN)]
    return Sample(
        processes=len(own),
        threads_each=sum(threads) / len(own),
        descriptors_each=sum(descriptors) / len(own),
        resident_bytes_each=sum(resident) / len(own),
        shared_files=len(shared),
        shared_bytes=sum(map(_size, shared)),
        journal_bytes=_size(folder / "journal.sqlite") + _size(folder / "journal.sqlite-wal"),
        disk_bytes=sum(map(_size, kept)),
    )


def grown(samples: Sequence[Sample]) -> list[str]:
    """Returns what grew between the second quarter and the last; nothing, of too few samples."""
    if len(samples) < FEW_SAMPLES:
        return []
    quarter = len(samples) // 4
    found = []
    for at, field in enumerate(fields(Sample)):
        before, now = (
            statistics.median(astuple(sample)[at] for sample in part)
            for part in (samples[quarter : 2 * quarter], samples[-quarter:])
        )
        if now > GROWTH * before + SLACK.get(field.name, 1.0):
            found.append(f"{field.name} grew from {before:.0f} to {now:.0f}")
    return found


def told(samples: Sequence[Sample]) -> str:
    """Returns one line: the medians of the second quarter and of the last."""
    quarter = max(1, len(samples) // 4)
    parts = samples[quarter : 2 * quarter] or samples, samples[-quarter:]
    medians = [[statistics.median(astuple(sample)[at] for sample in part) for part in parts] for at in range(8)]
    names = [field.name for field in fields(Sample)]
    return ", ".join(f"{name} {before:.0f} -> {now:.0f}" for name, (before, now) in zip(names, medians, strict=True))


def _descendants(root: int) -> list[int]:
    """Returns a process and all that come of it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue  # it has ended
            children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, ())
    return found


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0
