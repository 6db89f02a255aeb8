"""Kills by the kernel for lack of memory, as it counts them: on this machine, and in this process's cgroup.

A killed process cannot say why it is gone, and the signal is that of any SIGKILL. The kernel counts before it kills.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

from planaria.runtime.thresholds import RECENT_KILL_S

_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def counters() -> tuple[Path, ...]:
    """Returns the files with an `oom_kill` line: the machine's, and with cgroup v2 the group's own."""
    found = [Path("/proc/vmstat")]
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    found += [Path("/sys/fs/cgroup") / line[4:] / "memory.events" for line in lines if line.startswith("0::/")]
    return tuple(path for path in found if _read(path) is not None)


class KernelKills:
    """Watches the kernel's counts: asked now and then, and whenever a process is lost.

    Args:
        files: see `counters`.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = tuple(files)
        self._seen = self._counts()
        self._rose_at: float | None = None

    def recently(self) -> bool:
        """Whether the kernel killed something within the last seconds, or since this was last asked."""
        counts, now = self._counts(), time.monotonic()
        if any(new > old for new, old in zip(counts, self._seen, strict=True)):
            self._rose_at = now
        self._seen = counts
        return self._rose_at is not None and now - self._rose_at < RECENT_KILL_S

    def _counts(self) -> list[int]:
        return [_read(path) or 0 for path in self._files]


def _read(path: Path) -> int | None:
    try:
        found = _COUNT.search(path.read_text())
    except OSError:
        return None
    return int(found[1]) if found else None
