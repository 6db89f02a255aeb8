"""A run whose journal is in etcd, which its agents ask who leads, all on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from planaria.job.parse import load_job
from planaria.job.settings import Job
from planaria.runtime.run_folder.run_folder import RunFolder
from tests.e2e.agents import NUM_NODES, Hosts, family
from tests.e2e.commands import DEADLINE_S, wait_until
from tests.e2e.incubator import Incubator, Started
from tests.e2e.jobs import Outcome
from tests.engines.etcd_cluster import EtcdCluster


class Led(Hosts):
    """Nodes are agents, which ask etcd who leads; `tls`: name of the folder with their certificates."""

    def __init__(self, folder: Path, incubator: Incubator, etcd: EtcdCluster, tls: str = "") -> None:
        super().__init__(folder, incubator, cluster=f'tls = "{tls}"' if tls else "")
        self._tls = ("--tls", tls) if tls else ()
        name, job = folder.name, folder / "job.toml"
        text = job.read_text().replace("[run]\n", f'[run]\nname = "{name}"\njournal = "{etcd.url}"\n')
        job.write_text(re.sub(r"(?m)^port = .*$", "port = 0", text))
        self.run = RunFolder(folder / "runs" / name)
        self.url = etcd.url
        self.address = f"{etcd.url}/{name}"

    def begin(self, *of_first_agent: str) -> Started:
        leader = self.train()
        for node in range(NUM_NODES):
            self.start_agent(*self._tls, *(of_first_agent if node == 0 else ()))
        self.wait_for_step(3)
        return leader

    def stand_by(self, number: int = 0) -> tuple[Started, Path]:
        process, log = self.start_standby(number)
        self.wait_until_ready(process, log)
        return process, log

    def start_standby(self, number: int) -> tuple[Started, Path]:
        log = self.folder / f"standby-{number}.log"
        given = ("standby", str(self.run.path), *self._tls)
        return self.incubator.start(self.folder, *given, log=log, environment=self.environment), log

    def wait_until_ready(self, standby: Started, log: Path) -> None:
        assert wait_until(lambda: "stands by for run" in log.read_text() or standby.poll()), log.read_text()
        assert standby.poll() is None, log.read_text()

    def stop(self) -> None:
        command = self.incubator.start(self.folder, "stop", self.address, "--token-file", "token", *self._tls)
        assert command.wait(DEADLINE_S) == 0
        self.wait_for("run_ended")

    def status(self) -> str:
        command = self.incubator.start(self.folder, "status", str(self.run.path))
        said, _ = command.communicate(DEADLINE_S)
        assert command.returncode == 0, said
        return said

    def assert_refused(self, arguments: Sequence[str], part: str) -> None:
        process = self.incubator.start(self.folder, *arguments)
        _, said = process.communicate(DEADLINE_S)
        assert process.returncode == 2
        assert part in said
        assert len(said.strip().splitlines()) == 1, said

    def assert_same_bits(self, reference: Callable[[Job], Outcome], *, is_redone: bool = False) -> None:
        """Each step is told of once, unless some are done again, and has the loss of the reference; so have the
        weights."""
        committed = [event["step"] for event in self.events("step_committed")]
        assert is_redone or committed == list(range(1, len(committed) + 1))
        assert wait_until(self.run.summary.exists)
        summary = json.loads(self.run.summary.read_text())
        job = load_job(self.folder / "job.toml", [f"train.steps={summary['steps']}"])
        file = str(self.folder / "profile.json")
        alone = reference(msgspec.structs.replace(job, cluster=msgspec.structs.replace(job.cluster, profile=file)))
        lines = map(json.loads, self.run.metrics.read_text().splitlines())
        assert {line["step"]: line["loss"] for line in lines} == alone.losses
        assert summary["weights_sha256"] == alone.summary["weights_sha256"]


def strike(pid: int, number: signal.Signals) -> None:
    for one in family(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, number)
