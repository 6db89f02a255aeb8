"""What cannot be meant of one machine is refused before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from planaria.job.errors import UserError
from planaria.job.parse import parse_job
from planaria.job.settings import Job
from planaria.runtime.machine import limits as machine_limits
from planaria.ui.cli.main import cli

JOB = """
model = {{type = "gpt2"}}
cluster = {{nodes = {nodes}, {others}}}
train = {{steps = 3, global_batch = 8, microbatch = 2, sequence_length = 16}}
"""


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight processors, and memory for a thousand workers."""
    monkeypatch.setattr(machine_limits, "_processors", lambda: 8)
    monkeypatch.setattr(machine_limits, "_in_memory", lambda: 1000)


def job_of(nodes: int, others: str = "devices_per_node = 1") -> Job:
    return parse_job(JOB.format(nodes=nodes, others=others), origin="job.toml")


def test_so_many_to_a_processor() -> None:
    machine_limits.check_machine_limits(job_of(512))
    with pytest.raises(UserError, match="this machine, which is for 512 at most") as refused:
        machine_limits.check_machine_limits(job_of(100_000))
    text = str(refused.value)
    assert "\n" not in text
    assert text.startswith("cluster.nodes = 100000 ")
    assert "Set cluster.nodes = 512 or fewer" in text
    assert machine_limits.most_nodes(job_of(3)) == 512


def test_devices_are_workers_too() -> None:
    machine_limits.check_machine_limits(job_of(128, "devices_per_node = 4"))
    with pytest.raises(UserError, match="would start 516 workers"):
        machine_limits.check_machine_limits(job_of(129, "devices_per_node = 4"))
    assert machine_limits.most_nodes(job_of(3, "devices_per_node = 4")) == 128
    with pytest.raises(UserError, match=r"Set fewer cluster\.devices_per_node, cluster\.launcher"):
        machine_limits.check_machine_limits(job_of(2, "devices_per_node = 1000"))


def test_few_processors_and_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_limits, "_processors", lambda: 1)
    assert machine_limits.most_nodes(job_of(3)) == 256
    monkeypatch.setattr(machine_limits, "_in_memory", lambda: 100)
    assert machine_limits.most_nodes(job_of(3)) == 100


def test_who_means_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_limits.resource, "getrlimit", lambda _: (1024, 20_000))
    machine_limits.check_machine_limits(job_of(10_000, "most_workers = 10000"))
    with pytest.raises(UserError, match=r"cluster\.most_workers"):
        machine_limits.check_machine_limits(job_of(3, "most_workers = 2"))


def test_hosts_are_as_many_as_they_are() -> None:
    job = job_of(100_000, 'launcher = "agents"')
    machine_limits.check_machine_limits(job)
    assert machine_limits.most_nodes(job) is None


def test_one_line_exit_code_2_and_no_run_folder(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(JOB.format(nodes=100_000, others=f"port = 0}}\nrun = {{folder = '{tmp_path / 'runs'}'"))
    result = CliRunner().invoke(cli, ["train", str(path)])
    assert result.exit_code == 2
    assert "cluster.nodes = 100000" in result.stderr
    assert not list((tmp_path / "runs").glob("*"))


@pytest.fixture
def quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose process is in a control group below another one; returns the root of these."""
    monkeypatch.setattr(machine_limits, "PROC", tmp_path / "proc")
    monkeypatch.setattr(machine_limits, "CGROUPS", tmp_path / "cgroup")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/pod/one\n")
    (tmp_path / "cgroup/pod/one").mkdir(parents=True)
    return tmp_path / "cgroup"


def test_a_quota_counts_as_cores(quota: Path) -> None:
    assert machine_limits.num_cores() == 8.0
    (quota / "pod/one/cpu.max").write_text("max 100000\n")
    assert machine_limits.num_cores() == 8.0
    (quota / "pod/cpu.max").write_text("150000 100000\n")
    assert machine_limits.num_cores() == 1.5
    assert machine_limits.shared_cores(job_of(2)) == 1.5


def test_an_old_kernels_quota(quota: Path) -> None:
    (quota.parent / "proc/self/cgroup").write_text("9:name=systemd:/\n4:cpu,cpuacct:/one\n")
    (quota / "cpu/one").mkdir(parents=True)
    (quota / "cpu/one/cpu.cfs_period_us").write_text("100000\n")
    (quota / "cpu/one/cpu.cfs_quota_us").write_text("-1\n")
    assert machine_limits.num_cores() == 8.0
    (quota / "cpu/one/cpu.cfs_quota_us").write_text("400000\n")
    assert machine_limits.num_cores() == 4.0


def test_only_workers_of_this_machine_that_compute_share_its_cores(quota: Path) -> None:
    assert machine_limits.shared_cores(job_of(9)) == 8.0
    assert machine_limits.shared_cores(job_of(8)) is None
    for others in ('launcher = "agents"', 'device = "cuda"', 'device = "emulated", profile = "a.json"'):
        assert machine_limits.shared_cores(job_of(9, others)) is None
