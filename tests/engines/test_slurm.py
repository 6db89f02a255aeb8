"""A job on a real SLURM of this machine loses tasks, a node and the coordinator: the bits are the reference's."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from planaria.runtime.engines.engine import Task, TaskState
from planaria.runtime.engines.launch_folder import EngineJobs, Launch, LaunchFolder
from planaria.runtime.engines.slurm import Slurm
from planaria.runtime.engines.slurm_scripts import SlurmOptions, agents_script
from tests.e2e.agents import family
from tests.e2e.commands import wait_until
from tests.engines.slurm_cluster import PARTS, SlurmCluster, kill
from tests.engines.watched_run import WatchedRun

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(600),
    pytest.mark.skipif(any(shutil.which(part) is None for part in PARTS), reason="slurm-wlm is not installed"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    made = SlurmCluster(tmp_path_factory.mktemp("slurm"), 6)
    yield made
    made.close()


@pytest.fixture
def launch(cluster: SlurmCluster, tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    yield lambda *options: Launched(cluster, tmp_path, *options)
    cluster.run("scancel", "--me")


class Launched(WatchedRun):
    """A run that `planaria launch slurm` has begun, in a folder of its own."""

    def __init__(self, cluster: SlurmCluster, folder: Path, *options: str) -> None:
        super().__init__(folder, cluster.environment)
        self.cluster = cluster
        self.command("launch", "slurm", "job.toml", *options)
        jobs = LaunchFolder(folder / "runs" / "job.slurm").jobs()
        assert jobs is not None
        self.jobs: EngineJobs = jobs

    @property
    def said(self) -> str:
        queue = self.cluster.run("squeue", "--array", "--states=all", "-o", "%i %T %r %N")
        logs = (self.folder / "runs" / "job.slurm" / "logs").glob("*.log")
        return "\n".join([queue, *(f"== {log.name}\n{log.read_text()[-3000:]}" for log in sorted(logs))])

    def nodes_of(self, job: str) -> list[str]:
        """The nodes on which a job's tasks run."""
        return self.cluster.run("squeue", "-h", "--states=RUNNING", "--jobs", job, "-o", "%N").split()

    def state_of(self, job: str) -> str:
        return self.cluster.run("squeue", "-h", "--states=all", "--jobs", job, "-o", "%T")

    def stop_and_compare(self) -> None:
        """Ends the run, and compares its weights with one process that trains as many steps."""
        self.command("stop", "runs/job")
        self.wait_for("the run has ended", lambda: self.state_of(self.jobs.coordinator) == "COMPLETED")
        self.compare()
        active = "PENDING,RUNNING,COMPLETING"
        self.wait_for(
            "no agent is left",
            lambda: not self.cluster.run("squeue", "-h", f"--states={active}", "--jobs", self.jobs.agents),
        )


def test_tasks_a_node_and_the_coordinator_are_lost(cluster: SlurmCluster, launch: Callable[..., Launched]) -> None:
    launched = launch("--nodes", "3", "--spares", "1")
    launched.wait_for("three nodes train", lambda: launched.live_nodes >= 3 and launched.step > 5)
    for pid in family(launched.agents()[0]):
        kill(pid)
    launched.wait_for("the task is lost", lambda: launched.events("node_lost"))
    launched.wait_for("another takes its place", lambda: launched.live_nodes >= 3)

    agents = set(launched.nodes_of(launched.jobs.agents)) - set(launched.nodes_of(launched.jobs.coordinator))
    cluster.kill(sorted(agents)[0])
    launched.wait_for("the node is lost", lambda: len(launched.events("node_lost")) >= 2)
    launched.wait_for("a spare takes its place", lambda: launched.live_nodes >= 3)

    saved = len(launched.events("checkpoint_saved"))
    launched.wait_for("a checkpoint is there", lambda: len(launched.events("checkpoint_saved")) > saved)
    cluster.run("scontrol", "requeue", launched.jobs.coordinator)
    launched.wait_for("it is queued", lambda: launched.state_of(launched.jobs.coordinator) == "PENDING")
    before = launched.step
    cluster.run("scontrol", "update", f"JobId={launched.jobs.coordinator}", "StartTime=now+3")
    launched.wait_for("the run goes on", lambda: launched.step > before and launched.live_nodes >= 3)
    launched.stop_and_compare()


def test_the_notice_of_a_task_drains_its_node(cluster: SlurmCluster, launch: Callable[..., Launched]) -> None:
    """As SLURM sends it near the time limit: the node hands over, and the task comes back."""
    launched = launch("--nodes", "2", "--spares", "0")
    launched.wait_for("two nodes train", lambda: launched.live_nodes == 2 and launched.step > 5)
    cluster.run("scancel", "--batch", "--signal=USR1", f"{launched.jobs.agents}_0")
    launched.wait_for("it is released", lambda: launched.events("node_released"))
    launched.wait_for("it comes back", lambda: len(launched.events("node_joined")) == 3 and launched.live_nodes == 2)
    assert not launched.events("node_lost")
    labels = [event["label"] for event in launched.events("node_joined")]
    assert sorted(labels) == [f"{launched.jobs.agents}_{task}" for task in (0, 0, 1)]

    cluster.run("scancel", "--batch", "--signal=USR1", launched.jobs.coordinator)
    launched.wait_for("it is queued", lambda: launched.state_of(launched.jobs.coordinator) == "PENDING")
    before = launched.step
    cluster.run("scontrol", "update", f"JobId={launched.jobs.coordinator}", "StartTime=now+3")
    launched.wait_for("the run goes on", lambda: launched.step > before and launched.live_nodes == 2)
    launched.stop_and_compare()


def test_a_run_outlives_the_time_limit_of_its_jobs(cluster: SlurmCluster, launch: Callable[..., Launched]) -> None:
    """SLURM looks at limits twice a minute, gives notice, and would kill both jobs: they are queued again before."""
    began = time.monotonic()
    launched = launch("--nodes", "2", "--time", "10", "--notice", "5")
    jobs = launched.jobs.coordinator, launched.jobs.agents
    launched.wait_for("two nodes train", lambda: launched.live_nodes == 2 and launched.step > 0)
    minutes = 1 + int(time.monotonic() - began + 35) // 60  # a minute, where the machine has nothing else to do
    for job in jobs:
        cluster.run("scontrol", "update", f"JobId={job}", f"TimeLimit={minutes}")
    launched.wait_for("it is queued", lambda: launched.state_of(launched.jobs.coordinator) == "PENDING")
    saved = launched.events("checkpoint_saved")[-1]["step"]
    assert launched.events("run_ended")[-1]["steps"] == saved > 0, "nothing is done again"
    assert "the time limit is near: the run is saved, and this job goes back into the queue" in launched.said

    cluster.run("scontrol", "update", f"JobId={launched.jobs.coordinator}", "StartTime=now+3")
    launched.wait_for("the run goes on", lambda: launched.step > saved and launched.live_nodes == 2)
    launched.stop_and_compare()
    assert "TIMEOUT" not in cluster.run("squeue", "-h", "--array", "--states=all", "--jobs", ",".join(jobs), "-o", "%T")


def test_a_run_grows_when_its_least_nodes_train(cluster: SlurmCluster, launch: Callable[..., Launched]) -> None:
    launched = launch("--nodes", "2-3")
    launched.wait_for("two nodes train", lambda: launched.live_nodes == 2)
    launched.wait_for("a third one comes", lambda: launched.live_nodes == 3)
    launched.stop_and_compare()


class OneTask:
    """The agents' script as a job of one task. Its agent does `first`, and at its second start nothing."""

    def __init__(self, cluster: SlurmCluster, folder: Path, first: str) -> None:
        files = LaunchFolder(folder)
        agent = folder / "python"
        launch = Launch(
            job_file="", overrides=(), name="job", runs=str(folder), nodes=1, most_nodes=2, spares=0,
            python=str(agent), directory=str(folder),
        )  # fmt: skip
        files.logs.mkdir()
        agent.write_text(f"#!/bin/bash\nif [ -e began ]; then exit 0; fi\ntouch began\n{first}\n")
        agent.chmod(0o755)
        script = files.script("agents")
        script.write_text(agents_script(launch, files, SlurmOptions()).replace("--array=0-1%1", "--array=0"))
        self.job = cluster.run("sbatch", "--parsable", str(script))
        files.keep_jobs(EngineJobs(coordinator=self.job, agents=self.job))
        self.engine = Slurm(files)

    def wait_until(self, state: TaskState) -> None:
        assert wait_until(lambda: self.task.state is state), self.task

    @property
    def task(self) -> Task:
        (task,) = self.engine.tasks()
        return task


def test_a_task_that_was_given_back_is_held_and_starts_when_it_is_asked_for(
    cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
    one = OneTask(cluster, tmp_path, "exit 4")
    one.wait_until(TaskState.GIVEN_BACK)
    one.engine.replace(one.task)
    one.wait_until(TaskState.DONE)


def test_a_task_that_is_preempted_gets_notice_and_comes_back(
    cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
    one = OneTask(cluster, tmp_path, "trap 'touch noticed; exit 4' TERM; touch ready; while :; do sleep 0.1; done")
    assert wait_until((tmp_path / "ready").exists)
    node = cluster.run("squeue", "-h", "--jobs", one.job, "-o", "%N")
    place = ("--partition=urgent", "--exclusive", f"--nodelist={node}", "--output=/dev/null")
    cluster.run("sbatch", "--parsable", *place, "--wrap=sleep 1")
    one.wait_until(TaskState.HELD)
    assert (tmp_path / "noticed").exists()
    one.engine.replace(one.task)
    one.wait_until(TaskState.DONE)


def test_a_launch_under_tls(cluster: SlurmCluster, launch: Callable[..., Launched], tmp_path: Path) -> None:
    WatchedRun(tmp_path, cluster.environment).command("certificates", "tls")
    launched = launch("--nodes", "2", "--set", 'cluster.tls="tls"')
    launched.wait_for("two nodes train", lambda: launched.live_nodes == 2 and launched.step > 5)
    address, token = launched.run.address.read_text().strip(), "runs/job.slurm/token"
    assert launched.planaria("status", address, "--token-file", token).returncode == 2, "it is not asked plainly"
    assert "step" in launched.command("status", address, "--token-file", token, "--tls", "tls")
    launched.stop_and_compare()


def test_a_mistake_is_one_line(cluster: SlurmCluster, tmp_path: Path) -> None:
    run = WatchedRun(tmp_path, cluster.environment)
    refused = run.planaria("launch", "slurm", "job.toml", "--nodes", "2", "--partition", "none")
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert "invalid partition" in line
    assert "sinfo" in line
    assert not cluster.run("squeue", "-h", "--states=PENDING,RUNNING")
