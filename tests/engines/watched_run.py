"""A run that an engine keeps, watched from outside by its folder."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from planaria.runtime.run_folder.run_folder import RunFolder

DEADLINE_S = 120.0
_SMALL_JOB = """
[model]
type = "gpt2"
config = {{ n_layer = 4, n_embd = 64, n_head = 4, n_positions = 64 }}
[data]
source = "python-stdlib"
tokenizer = "bytes"
[train]
steps = 1000000
global_batch = 12
microbatch = 2
sequence_length = 32
learning_rate = 1e-3
lr_schedule = "constant"
[resilience]
min_nodes_per_pipeline = 1
[cluster]
nodes = 3
{cluster}
[run]
{run}
"""


def small_job(*, cluster: str = "", run: str) -> str:
    """Returns the job file of a small GPT-2 on three nodes, with more lines of [cluster] and [run]."""
    return _SMALL_JOB.format(cluster=cluster, run=run)


class WatchedRun:
    """The run of job.toml in a folder of its own.

    Args:
        folder: where all of it lies.
        environment: of the commands.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.run = RunFolder(folder / "runs" / "job")
        self._environment = environment
        (folder / "job.toml").write_text(small_job(run="checkpoint_every = 25"))

    def planaria(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "planaria.ui.cli.main", *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=self._environment, capture_output=True, text=True, timeout=300, check=False
        )

    def command(self, *arguments: str) -> str:
        done = self.planaria(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def events(self, kind: str) -> list[dict[str, Any]]:
        try:
            lines = self.run.events.read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        found = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event for event in found if event["event"] == kind]

    @property
    def step(self) -> int:
        committed = self.events("step_committed")
        return int(committed[-1]["step"]) if committed else 0

    @property
    def live_nodes(self) -> int:
        committed = self.events("step_committed")
        return int(committed[-1]["live_nodes"]) if committed else 0

    def wait_for(self, what: str, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"{what}\n{self.said}"
            time.sleep(0.2)

    @property
    def said(self) -> str:
        """All that is worth reading when something does not come."""
        return ""

    def agents(self) -> list[int]:
        """The agents' processes."""
        words = f"file:{self.run.address}"
        found = []
        for process in Path("/proc").iterdir():
            try:
                arguments = (process / "cmdline").read_text().split("\0") if process.name.isdigit() else []
            except OSError:
                continue
            if words in arguments:
                found.append(int(process.name))
        return found

    def compare(self) -> None:
        """Compares the weights of the run, which is over, with those of one process that trains as many steps."""
        summary = json.loads(self.run.summary.read_text())
        steps = f"train.steps={summary['steps']}"
        self.command("train", "job.toml", "--reference", "--name", "alone", "--set", steps)
        alone = json.loads((self.folder / "runs" / "alone" / "summary.json").read_text())
        assert summary["weights_sha256"] == alone["weights_sha256"]
