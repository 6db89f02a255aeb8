"""Kills by the kernel for lack of memory, as it counts them: in this process's cgroup, or else on this machine.

A killed process cannot say why it is gone, and the signal is that of any SIGKILL. The kernel counts before it kills.
Where only the machine's count is there, a kill of somebody else's may be taken for that of a process that is lost by
another SIGKILL within the next seconds.
"""

from __future__ import annotations

import re
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from planaria.runtime.thresholds import RECENT_KILL_S

_MOST = 1024
"""Kills that are remembered of one rise."""

_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def counters(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> tuple[Path, ...]:
    """Returns the files with an `oom_kill` line whose kills may be of this process's children.

    With cgroup v2 that is the own group's alone: its count has all groups below it, and none beside it. Elsewhere it is
    the machine's.
    """
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    own = [groups / line[4:].strip("/") / "memory.events" for line in lines if line.startswith("0::/")]
    found = [path for path in own if _read(path) is not None] or [proc / "vmstat"]
    return tuple(path for path in found if _read(path) is not None)


class KernelKills:
    """Watches the kernel's counts: look now and then, and ask whenever a process is lost.

    Args:
        files: see `counters`.
        clock: seconds.
    """

    def __init__(self, files: Sequence[Path], clock: Callable[[], float] = time.monotonic) -> None:
        self._files = tuple(files)
        self._clock = clock
        self._seen = self._counts()
        self._unexplained: deque[float] = deque()
        """When each kill was seen that no lost process accounts for."""

    def look(self) -> None:
        """Notes by how much the counts have risen."""
        counts, now = self._counts(), self._clock()
        risen = max((new - old for new, old in zip(counts, self._seen, strict=True)), default=0)
        self._seen = counts
        self._unexplained.extend([now] * min(risen, _MOST))
        while self._unexplained and now - self._unexplained[0] >= RECENT_KILL_S:
            self._unexplained.popleft()

    def explain(self, cause: str) -> bool:
        """Returns whether one of the last seconds' kills accounts for a process that ended so. A kill accounts for one
        process, and for none that is known to have ended otherwise than by SIGKILL."""
        self.look()
        is_other = cause.startswith("process ") and signal.SIGKILL.name not in cause
        if is_other or not self._unexplained:
            return False
        self._unexplained.popleft()
        return True

    def _counts(self) -> list[int]:
        return [_read(path) or 0 for path in self._files]


def _read(path: Path) -> int | None:
    try:
        found = _COUNT.search(path.read_text())
    except OSError:
        return None
    return int(found[1]) if found else None
