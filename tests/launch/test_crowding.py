"""What cannot be meant of one machine is refused before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from planaria.cli.main import cli
from planaria.job.errors import UserError
from planaria.job.parse import parse_job
from planaria.job.settings import Job
from planaria.launch import crowding

JOB = """
model = {{type = "gpt2"}}
cluster = {{nodes = {nodes}, {others}}}
train = {{steps = 3, global_batch = 8, microbatch = 2, sequence_length = 16}}
"""


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight processors, and memory for a thousand workers."""
    monkeypatch.setattr(crowding, "_processors", lambda: 8)
    monkeypatch.setattr(crowding, "_in_memory", lambda: 1000)


def job_of(nodes: int, others: str = "devices_per_node = 1") -> Job:
    return parse_job(JOB.format(nodes=nodes, others=others), origin="job.toml")


def test_so_many_to_a_processor() -> None:
    crowding.check_crowding(job_of(512))
    with pytest.raises(UserError, match="this machine, which is for 512 at most") as refused:
        crowding.check_crowding(job_of(100_000))
    text = str(refused.value)
    assert "\n" not in text
    assert text.startswith("cluster.nodes = 100000 ")
    assert "Set cluster.nodes = 512 or fewer" in text
    assert crowding.most_nodes(job_of(3)) == 512


def test_devices_are_workers_too() -> None:
    crowding.check_crowding(job_of(128, "devices_per_node = 4"))
    with pytest.raises(UserError, match="would start 516 workers"):
        crowding.check_crowding(job_of(129, "devices_per_node = 4"))
    assert crowding.most_nodes(job_of(3, "devices_per_node = 4")) == 128
    with pytest.raises(UserError, match=r"Set fewer cluster\.devices_per_node, cluster\.launcher"):
        crowding.check_crowding(job_of(2, "devices_per_node = 1000"))


def test_few_processors_and_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowding, "_processors", lambda: 1)
    assert crowding.most_nodes(job_of(3)) == 256
    monkeypatch.setattr(crowding, "_in_memory", lambda: 100)
    assert crowding.most_nodes(job_of(3)) == 100


def test_who_means_it_says_so() -> None:
    crowding.check_crowding(job_of(100_000, "most_workers = 100000"))
    with pytest.raises(UserError, match=r"cluster\.most_workers"):
        crowding.check_crowding(job_of(3, "most_workers = 2"))


def test_hosts_are_as_many_as_they_are() -> None:
    job = job_of(100_000, 'launcher = "agents"')
    crowding.check_crowding(job)
    assert crowding.most_nodes(job) is None


def test_one_line_exit_code_2_and_no_run_folder(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(JOB.format(nodes=100_000, others=f"port = 0}}\nrun = {{folder = '{tmp_path / 'runs'}'"))
    result = CliRunner().invoke(cli, ["train", str(path)])
    assert result.exit_code == 2
    assert "cluster.nodes = 100000" in result.stderr
    assert not list((tmp_path / "runs").glob("*"))
