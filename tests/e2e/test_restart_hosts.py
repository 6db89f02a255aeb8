"""The coordinator of a job on several hosts is killed: nodes and agents live on, and training too."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from tests.e2e.test_partition import Cluster, Reference, cluster, hosts

__all__ = ["cluster", "hosts"]


def coordinators(parent: int) -> list[int]:
    """The coordinator that serves, of the command with this pid."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                name = (process / "comm").read_text()
                lineage = (process / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if name == "coordinator\n":
                grandparent = Path(f"/proc/{lineage[1]}/stat").read_text().rpartition(")")[2].split()[1]
                if parent in (int(lineage[1]), int(grandparent)):
                    found.append(int(process.name))
    return found


def test_the_coordinator_of_hosts_is_killed_and_replaced(cluster: Callable[..., Cluster], reference: Reference) -> None:
    job = cluster()
    (pid,) = coordinators(job.train.pid)
    os.kill(pid, signal.SIGKILL)
    job.wait_for("coordinator_restarted")
    job.wait_for_steps(3)
    away = job.host_of(5)
    job.network.pull(away)
    job.wait_for("node_lost")
    job.wait_for_plan_of(5)
    job.network.plug(away)
    job.wait_for_plan_of(6)
    assert max(job.nodes_in_plan()) >= 6, "it came back under a new number"
    job.assert_same_bits(reference)
    assert [event["node"] for event in job.events("node_lost")] == [5]
