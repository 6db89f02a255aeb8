"""A coordinator whose journal is in etcd: what that costs a step, and what it saves when the host dies.

commit: from a step's last vote to the last worker's having its commit, with the journal in the run folder and in etcd.
kill: the leader is killed with all its processes, again and again; from the kill to the next commit of its follower. A
small GPT-2 on three agents of this machine. The lease lasts 3 s.

etcd is Debian's (etcd-server), three members on loopback and one disk.

    python benchmarks/standby.py [commit] [kill] [--kills 5] [--steps 300]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from commit_latency import in_the_folder, measure_commit
from figures import note, report

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.e2e.agents import family
from tests.engines.etcd_cluster import EtcdCluster, etcd_cluster
from tests.engines.watched_run import small_job

from planaria.runtime.journal.etcd_journal import EtcdJournal
from planaria.runtime.journal.lead import Lead
from planaria.runtime.thresholds import LEASE_S

PLANARIA = [sys.executable, "-m", "planaria.ui.cli.main"]
DEADLINE_S = 120.0


def commit(etcd: EtcdCluster, steps: int) -> None:
    """The journal in the run folder and in etcd, in turns."""
    found: dict[str, list[float]] = {"sqlite": [], "etcd": []}
    with contextlib.closing(Lead(etcd.url, "commit")) as lead:
        assert lead.take()
        for turn in range(4):
            mark = f"turn {turn}"
            found["sqlite"] += measure_commit(8, 2, steps=steps, journal_of=in_the_folder)
            found["etcd"] += measure_commit(
                8, 2, steps=steps,
                journal_of=lambda folder, mark=mark: EtcdJournal(etcd.url, "commit", mark, lead.revision, 10.0),
            )  # fmt: skip
    for name, seconds in found.items():
        report(f"standby/commit/{name}/median", 1e3 * statistics.median(seconds), "ms")
        report(f"standby/commit/{name}/p99", 1e3 * statistics.quantiles(seconds, n=100)[98], "ms")


def kill(etcd: EtcdCluster, kills: int, folder: Path) -> None:
    """Leaders are killed one after the other."""
    (folder / "job.toml").write_text(
        small_job(cluster='launcher = "agents"', run=f'checkpoint_every = 0\njournal = "{etcd.url}"')
    )
    (folder / "token").write_text("0123456789abcdef")
    (folder / "token").chmod(0o600)
    metrics = folder / "runs" / "job" / "metrics.jsonl"
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        with (folder / f"log-{len(started)}").open("wb") as log:
            started.append(subprocess.Popen([*PLANARIA, *arguments], cwd=folder, stdout=log, stderr=log))
        return started[-1]

    def wait_for(steps: int) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not metrics.exists() or metrics.read_bytes().count(b"\n") < steps:
            assert time.monotonic() < deadline, "no step came"
            time.sleep(0.005)

    try:
        leader = start("train", "job.toml", "--token-file", "token")
        for _ in range(3):
            start("agent", "--coordinator", f"{etcd.url}/job", "--token-file", "token")
        wait_for(10)
        found = []
        for _ in range(kills):
            standby = start("standby", "runs/job")
            log = folder / f"log-{len(started) - 1}"
            while "stands by" not in log.read_text():
                assert standby.poll() is None, log.read_text()
                time.sleep(0.05)
            _strike(leader.pid)
            began, before = time.monotonic(), metrics.read_bytes().count(b"\n")
            wait_for(before + 1)
            found.append(time.monotonic() - began)
            note(f"next commit after {found[-1]:.2f} s")
            leader = standby
            wait_for(before + 20)
        report("standby/kill/next commit", statistics.median(found), "s", goal=f"<= {LEASE_S + 1}")
        report("standby/kill/longest", max(found), "s")
    finally:
        for process in started:
            _strike(process.pid)


def _strike(ancestor: int) -> None:
    for pid in family(ancestor):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["commit", "kill"])
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, etcd_cluster(Path(scratch) / "etcd") as etcd:
        if "commit" in arguments.parts:
            commit(etcd, arguments.steps)
        if "kill" in arguments.parts:
            kill(etcd, arguments.kills, Path(scratch))


if __name__ == "__main__":
    main()
