"""docs/howto/extending.md: its changes are made to a copy of the code, and a job trains with all of them."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from tests.e2e.incubator import Incubator
from tests.e2e.jobs import profile

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "howto" / "extending.md").read_text()
HOSTS = """
[train]
steps = 2
global_batch = 4
microbatch = 1
sequence_length = 16
[cluster]
nodes = 2
launcher = "slurm"
device = "emulated"
profile = "profile.json"
[resilience]
min_nodes_per_pipeline = 1
"""
ASK = """
import json, sys
from click.testing import CliRunner
from planaria.ui.cli.main import cli
print(json.dumps([CliRunner().invoke(cli, arguments).output for arguments in json.loads(sys.argv[1])]))
"""
"""What one process that is given several commands says to each."""

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
    """A folder with a copy of the code, extended, and a job."""
    root = tmp_path_factory.mktemp("extended")
    shutil.copytree(ROOT / "src", root / "src")  # with what is compiled of it
    for path, text in re.findall(r"`(src/[\w/]+\.py)`:\n\n```python\n(.*?)```", PAGE, re.DOTALL):
        (root / path).write_text(text)
    for block in blocks("diff"):
        apply(block, root)
    (job,) = blocks("toml")
    (root / "extended.toml").write_text(job)
    return root


@pytest.fixture(scope="module")
def own_incubator(extended: Path, hangs_up: None) -> Iterator[Incubator]:
    """One that has imported the extended code."""
    with closing(Incubator(["env", f"PYTHONPATH={extended / 'src'}"])) as made:
        yield made


def environment(root: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(root / "src"), "PATH": f"{root / 'bin'}:{os.environ['PATH']}"}


def summary(root: Path, name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((root / "runs" / name / "summary.json").read_text())
    return found


@pytest.mark.timeout(180)
def test_a_job_trains_with_a_policy_a_model_data_and_a_schedule_of_ones_own(
    extended: Path, own_incubator: Incubator
) -> None:
    (commands,) = blocks("bash")
    for command in commands.splitlines():
        done = own_incubator.start(extended, *shlex.split(command)[1:])
        _, said = done.communicate()
        assert done.returncode == 0, said
    trained, alone = summary(extended, "extended"), summary(extended, "extended-reference")
    assert trained["policy"] == "patient"
    assert trained["weights_sha256"] == alone["weights_sha256"]
    (recovery,) = trained["recoveries"]  # type: ignore[misc]
    assert recovery["lost_nodes"] == [1]


@pytest.mark.proof
@pytest.mark.timeout(180)
def test_a_launcher_of_ones_own_starts_nodes(extended: Path) -> None:
    """`srun --nodes=N ... COMMAND` runs the command N times here."""
    (extended / "bin").mkdir()
    for name, script in (
        ("srun", 'nodes=${1#--nodes=}; shift 2; for _ in $(seq "$nodes"); do "$@" & done; wait'),
        ("planaria", f'exec {sys.executable} -m planaria.ui.cli.main "$@" --give-up 120'),
    ):
        (extended / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (extended / "bin" / name).chmod(0o755)
    (extended / "profile.json").write_bytes(msgspec.json.encode(profile()))
    (extended / "hosts.toml").write_text(HOSTS)
    done = subprocess.run(
        [*TRAIN, "train", "hosts.toml"],
        cwd=extended,
        env=environment(extended),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "slurm runs on each: planaria agent" in done.stderr
    assert summary(extended, "hosts")["live_nodes"] == 2


def test_the_names_are_known_to_whoever_lists_them(extended: Path) -> None:
    """In the options of `planaria plan`, and in what refuses another name."""
    names = {
        "resilience.policy": "patient",
        "cluster.schedule": "eager-3",
        "cluster.launcher": "slurm",
    }
    given = [["plan", "--help"]]
    given += [["train", "extended.toml", "--name", "refused", "--set", f"{field}=other"] for field in names]
    done = subprocess.run(
        [sys.executable, "-c", ASK, json.dumps(given)],
        cwd=extended,
        env=environment(extended),
        capture_output=True,
        text=True,
        check=True,
    )
    options, *refused = json.loads(done.stdout)
    assert "adaptive|patient" in options
    assert "gpipe|eager-3" in options
    for said, (field, known) in zip(refused, names.items(), strict=True):
        assert f"{field} = 'other'" in said
        assert known in said
