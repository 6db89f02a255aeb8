"""docs/howto/extending.md: its changes are made to a copy of the code, and a job trains with all of them."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "howto" / "extending.md").read_text()
TRAIN = [sys.executable, "-m", "planaria.ui.cli.main"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def apply(block: str, root: Path) -> None:
    """Changes a file as a block shows: lines with a minus become those with a plus, or these come below the others."""
    path, *lines = block.splitlines()
    file = root / path.strip()
    text = file.read_text()
    before = "".join(f"{line[1:]}\n" for line in lines if line[0] in " -")
    after = "".join(f"{line[1:]}\n" for line in lines if line[0] in " +")
    assert text.count(f"\n{before}") == 1, f"{path} has not once:\n{before}"
    file.write_text(text.replace(f"\n{before}", f"\n{after}"))


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the code, extended, a job and the launcher."""
    root = tmp_path_factory.mktemp("extended")
    shutil.copytree(ROOT / "src", root / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for path, text in re.findall(r"`(src/[\w/]+\.py)`:\n\n```python\n(.*?)```", PAGE, re.DOTALL):
        (root / path).write_text(text)
    for block in blocks("diff"):
        apply(block, root)
    (root / "launch.py").write_text(blocks("python")[-1])
    (job,) = blocks("toml")
    (root / "extended.toml").write_text(job)
    return root


def environment(root: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(root / "src"), "PATH": f"{root / 'bin'}:{os.environ['PATH']}"}


def summary(root: Path, name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((root / "runs" / name / "summary.json").read_text())
    return found


@pytest.mark.timeout(180)
def test_a_job_trains_with_a_policy_a_model_data_and_a_schedule_of_ones_own(extended: Path) -> None:
    (commands,) = blocks("bash")
    for command in commands.splitlines():
        done = subprocess.run(
            [*TRAIN, *shlex.split(command)[1:]],
            cwd=extended,
            env=environment(extended),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    trained, alone = summary(extended, "extended"), summary(extended, "extended-reference")
    assert trained["policy"] == "patient"
    assert trained["weights_sha256"] == alone["weights_sha256"]
    (recovery,) = trained["recoveries"]  # type: ignore[misc]
    assert recovery["lost_nodes"] == [1]


@pytest.mark.timeout(180)
def test_a_script_of_ones_own_starts_nodes(extended: Path) -> None:
    """`ssh HOST COMMAND` runs the command here."""
    (extended / "bin").mkdir()
    for name, script in (
        ("ssh", 'shift; exec "$@"'),
        ("planaria", f'exec {sys.executable} -m planaria.ui.cli.main "$@" --give-up 120'),
    ):
        (extended / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (extended / "bin" / name).chmod(0o755)
    (extended / "secret").write_text("known-to-both-sides")
    (extended / "secret").chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    changes = ["cluster.launcher=agents", f"cluster.port={port}", "cluster.nodes=2", "train.steps=2"]
    changes.append("resilience.min_nodes_per_pipeline=1")
    settings = [part for change in changes for part in ("--set", change)]
    train = subprocess.Popen(
        [*TRAIN, "train", "extended.toml", "--name", "hosts", "--token-file", "secret", *settings],
        cwd=extended,
        env=environment(extended),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    launched = subprocess.run(
        [sys.executable, "launch.py", f"127.0.0.1:{port}", "secret", "here", "there"],
        cwd=extended,
        env=environment(extended),
        capture_output=True,
        text=True,
        check=False,
    )
    if launched.returncode != 0:
        train.kill()
    said, _ = train.communicate()
    assert train.returncode == 0, said + launched.stderr
    assert launched.returncode == 0, launched.stderr
    assert summary(extended, "hosts")["live_nodes"] == 2
