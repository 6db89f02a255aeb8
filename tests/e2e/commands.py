"""`planaria` as users run it, in a folder of its own, and what runs or is left of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tests.e2e.incubator import Incubator, Started
from tests.e2e.jobs import LAYER_S, MODELS, profile

DEADLINE_S = 180.0
PLANARIA = [sys.executable, "-m", "planaria.ui.cli.main"]


@dataclass
class Command:
    """`planaria` as a process of its own, in a folder of its own."""

    folder: Path
    incubator: Incubator

    def write_job(self, text: Path, model: str = MODELS["gpt2"], steps: int = 5) -> None:
        (self.folder / "job.toml").write_text(
            f"""
[model]
{model}
[data]
source = {str(text)!r}
[train]
steps = {steps}
global_batch = 8
microbatch = 1
sequence_length = 16
[cluster]
nodes = 4
"""
        )

    def write_emulated_job(self, steps: int, layer_s: float = LAYER_S) -> None:
        """Four workers that compute nothing: it starts quickly, and a step takes a tenth of a second, or longer."""
        (self.folder / "profile.json").write_bytes(msgspec.json.encode(profile(layer_s=layer_s)))
        (self.folder / "job.toml").write_text(
            f"""
[train]
steps = {steps}
global_batch = 8
microbatch = 1
sequence_length = 16
[cluster]
nodes = 4
device = "emulated"
profile = "profile.json"
"""
        )

    def start(self, *arguments: str) -> Started:
        return self.incubator.start(self.folder, *arguments)

    def start_anew(self, *arguments: str) -> subprocess.Popen[str]:
        """In an interpreter of its own, as from a shell."""
        return subprocess.Popen(
            [*PLANARIA, *arguments],
            cwd=self.folder,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str) -> tuple[int, str]:
        """Exit status and what it said on standard error; nothing of it may run afterwards."""
        process = self.start(*arguments)
        _, said = process.communicate(timeout=DEADLINE_S)
        assert wait_until(lambda: not descendants(self.folder)), descendants(self.folder)
        return process.returncode, said

    def wait_for_step(self, step: int) -> None:
        metrics = self.folder / "runs" / "job" / "metrics.jsonl"
        assert wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") >= step)


def wait_until(condition: Callable[[], object]) -> bool:
    """Returns whether a condition held before the deadline; asks again and again, less often the longer it waits."""
    began = now = time.monotonic()
    while now < began + DEADLINE_S:
        if condition():
            return True
        time.sleep(min(0.05, max(0.005, 0.05 * (now - began))))
        now = time.monotonic()
    return False


def descendants(folder: Path) -> list[int]:
    """Other processes whose working directory is the test's own folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if Path(os.readlink(entry / "cwd")) == folder and "State:\tZ" not in (entry / "status").read_text():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def summary(command: Command) -> dict[str, object]:
    loaded: dict[str, object] = json.loads((command.folder / "runs" / "job" / "summary.json").read_text())
    return loaded
