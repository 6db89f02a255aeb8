"""Kills for lack of memory: which lost processes the kernel's counts account for, and which they do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from planaria.runtime.coordinator.kernel_kills import KernelKills, counters
from planaria.runtime.thresholds import RECENT_KILL_S

KILLED = "process killed by SIGKILL"


class Kernel:
    """A count, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self._file = folder / "memory.events"
        self.count(5)
        self.kills = KernelKills([self._file], lambda: self.now)

    def count(self, kills: int) -> None:
        self._file.write_text(f"oom 1\noom_kill {kills}\noom_group_kill 0\n")


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


def test_a_kill_accounts_for_one_process(kernel: Kernel) -> None:
    assert not kernel.kills.explain(KILLED), "the five were before"
    kernel.count(7)
    assert [kernel.kills.explain(cause) for cause in (KILLED, "connection closed", KILLED)] == [True, True, False]


@pytest.mark.parametrize("cause", ["process ended with status 1", "process killed by SIGSEGV"])
def test_what_ended_otherwise_was_not_killed(kernel: Kernel, cause: str) -> None:
    kernel.count(6)
    assert not kernel.kills.explain(cause)
    assert kernel.kills.explain(KILLED), "it is another one's"


def test_an_old_kill_accounts_for_nobody(kernel: Kernel) -> None:
    kernel.count(6)
    kernel.kills.look()
    kernel.now = RECENT_KILL_S
    assert not kernel.kills.explain(KILLED)


def test_without_counts_nothing_is_known() -> None:
    assert not KernelKills(()).explain(KILLED)


def test_the_own_group_is_asked_and_the_machine_only_without_one(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    (proc / "self").mkdir(parents=True)
    (groups / "job").mkdir(parents=True)
    (proc / "vmstat").write_text("pgfault 3\noom_kill 1\n")
    assert counters(proc, groups) == (proc / "vmstat",)
    (proc / "self" / "cgroup").write_text("0::/job\n")
    assert counters(proc, groups) == (proc / "vmstat",)
    (groups / "job" / "memory.events").write_text("oom 0\noom_kill 0\n")
    assert counters(proc, groups) == (groups / "job" / "memory.events",)
