"""What launchers' environments say of a node's place, and what is said where they say nothing."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from planaria.job.errors import UserError
from planaria.runtime.engines.attendant import Attendant
from planaria.runtime.engines.engine import TaskState
from planaria.runtime.engines.job_environment import NodePlace, first_host, label_of, place_of
from planaria.runtime.engines.own_agent import OwnAgent
from planaria.ui.cli.main import cli
from tests.runtime.coordinator.test_remote_nodes import TOKEN
from tests.runtime.engines.test_slurm import JOB

TRAINER = {
    "PET_NNODES": "4",
    "PET_NPROC_PER_NODE": "8",
    "PET_NODE_RANK": "3",
    "PET_MASTER_ADDR": "job-node-0-0.job",
    "PET_MASTER_PORT": "29500",
}
SLURM = {"SLURM_PROCID": "2", "SLURM_STEP_NODELIST": "n[07-09,12]", "SLURM_NTASKS": "4", "SLURM_GPUS_ON_NODE": "2"}
SKYPILOT = {
    "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NUM_GPUS_PER_NODE": "1",
}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (TRAINER, NodePlace(rank=3, address="job-node-0-0.job:29500", nodes=(4, 4), devices=8)),
        ({"PET_MASTER_ADDR": "a"}, NodePlace(rank=None, address="a:29400")),
        (
            {**TRAINER, "PET_NNODES": "2:6", "PET_NPROC_PER_NODE": "auto"},
            NodePlace(rank=3, address="job-node-0-0.job:29500", nodes=(2, 6)),
        ),
        (SLURM, NodePlace(rank=2, address="n07:29400", nodes=(4, 4), devices=2)),
        (SKYPILOT, NodePlace(rank=1, address="10.0.0.1:29400", nodes=(2, 2), devices=1)),
        ({**SLURM, **TRAINER}, NodePlace(rank=3, address="job-node-0-0.job:29500", nodes=(4, 4), devices=8)),
        ({"SLURM_JOB_ID": "7", "HOME": "/root"}, None),
    ],
)
def test_a_place_is_read(environment: dict[str, str], expected: NodePlace | None) -> None:
    assert place_of(environment) == expected


@pytest.mark.parametrize(
    ("environment", "label"),
    [
        ({"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3", "SLURM_JOB_ID": "9", "SLURM_PROCID": "0"}, "7_3"),
        ({"SLURM_JOB_ID": "9", "SLURM_PROCID": "2"}, "9.2"),
        (TRAINER, "host"),
    ],
)
def test_a_node_is_called_what_its_launcher_calls_it(environment: dict[str, str], label: str) -> None:
    assert label_of(environment, "host") == label


@pytest.mark.parametrize("hosts", ["n1", "n1,n2", "n[1-3]", "n[1,3]", "n[1-2],m4"])
def test_the_first_host_of_a_list(hosts: str) -> None:
    assert first_host(hosts) == "n1"
    assert first_host("rack[3-4]n[01-16,20],other") == "rack3n01"


@pytest.mark.parametrize("name", ["PET_NODE_RANK", "PET_NNODES", "PET_MASTER_PORT"])
def test_what_is_no_number_is_named(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} = '-1x' is not a number"):
        place_of({**TRAINER, name: "-1x"})


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "All nodes need the same token"),
        ({"PLANARIA_TOKEN": TOKEN}, "nothing says which node this is"),
        ({"PLANARIA_TOKEN": TOKEN, "PET_MASTER_ADDR": "a"}, "PET_NODE_RANK is not"),
        ({"PLANARIA_TOKEN": TOKEN, "PET_MASTER_ADDR": "a", "PET_NODE_RANK": "0"}, "Give --nodes N"),
    ],
)
def test_a_node_without_a_place_says_so(environment: dict[str, str], words: str, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    done = CliRunner().invoke(cli, ["launch", "here", str(tmp_path / "job.toml")], env=environment)
    assert done.exit_code == 2
    (line,) = done.output.splitlines()
    assert words in line


@pytest.mark.parametrize(
    ("given", "nnodes", "expected"),
    [((), "2:6", "least = 2, most = 6"), (("--nodes", "3-5"), "2:6", "least = 3, most = 5"), ((), "4", "nodes=4")],
)
def test_a_range_of_nodes_is_a_run_that_grows(
    given: tuple[str, ...], nnodes: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[Sequence[str]] = []
    monkeypatch.setattr(Attendant, "__init__", lambda self, launch, command, *_: trained.append(command))
    monkeypatch.setattr(Attendant, "run", lambda self: 0)
    (tmp_path / "job.toml").write_text(JOB)
    environment = {**TRAINER, "PLANARIA_TOKEN": TOKEN, "PET_NODE_RANK": "0", "PET_NNODES": nnodes}
    command = ["launch", "here", str(tmp_path / "job.toml"), "--no-agent", *given]
    assert CliRunner().invoke(cli, command, env=environment).exit_code == 0
    assert any(expected in word for word in trained[0])


def test_an_agent_asks_for_an_address_where_nothing_says_one() -> None:
    done = CliRunner().invoke(cli, ["agent"], env={"PLANARIA_TOKEN": TOKEN})
    assert (done.exit_code, "Missing option '--coordinator'" in done.output) == (2, True)


def test_the_agent_beside_a_coordinator_is_started_again() -> None:
    own = OwnAgent([sys.executable, "-c", "import time; time.sleep(600)"])
    assert own.tasks() == []
    own.start()
    (task,) = own.tasks()
    assert task.state is TaskState.RUNNING
    own.end()
    (task,) = own.tasks()
    assert task.state is TaskState.LOST, "it was killed"
    own.replace(task)
    assert [task.state for task in own.tasks()] == [TaskState.RUNNING]
    own.end()


@pytest.mark.parametrize(("code", "state"), [(0, "DONE"), (4, "DONE"), (75, "LOST"), (1, "LOST")])
def test_how_an_agent_ended_says_whether_it_is_needed(code: int, state: str) -> None:
    own = OwnAgent([sys.executable, "-c", f"raise SystemExit({code})"])
    own.start()
    own.wait()
    assert [task.state.name for task in own.tasks()] == [state]


def test_the_example_of_skypilot_starts_an_agent() -> None:
    task = yaml.safe_load((Path(__file__).parents[3] / "examples" / "skypilot-agent.yaml").read_text())
    (line,) = [line for line in task["run"].splitlines() if "planaria" in line]
    _, planaria, name, *words = shlex.split(line)
    assert (planaria, name) == ("planaria", "agent")
    assert cli.commands["agent"].make_context("agent", words).params["coordinator"] == "$COORDINATOR"
    assert set(task["envs"]) == {"COORDINATOR", "SHARED"}
