"""A job on a real Ray cluster of this machine loses raylets and actors: the bits are the reference's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install ray")
from ray._raylet import GcsClient
from ray.cluster_utils import Cluster

from tests.e2e.agents import family
from tests.e2e.commands import descendants
from tests.engines.watched_run import DEADLINE_S, WatchedRun

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]

NUM_RAYLETS = 3
NODE = {"num_cpus": 1, "object_store_memory": 80 << 20}
HEALTH_CHECKS = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 2,
}
PREEMPTION = 2
"""Ray's reason for draining a node that goes away, whatever runs there."""
DRIVER = """
import sys, planaria
planaria.launch_on_ray(planaria.load_job("job.toml"), nodes=2, spares=1, address=sys.argv[1], progress=True)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    head = {**NODE, "num_cpus": 0, "include_dashboard": False, "_system_config": HEALTH_CHECKS}
    made = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(NUM_RAYLETS):
            made.add_node(**NODE)
        yield made
    finally:
        made.shutdown()


@pytest.fixture
def launch(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., Driven]]:
    begun: list[Driven] = []

    def begin(*command: str) -> Driven:
        begun.append(Driven(tmp_path, command))
        return begun[-1]

    yield begin
    for driven in begun:
        driven.driver.kill()
        driven.driver.wait(DEADLINE_S)


class Driven(WatchedRun):
    """A run whose driver is a process of this test."""

    def __init__(self, folder: Path, command: Sequence[str]) -> None:
        super().__init__(folder, os.environ)
        self._log = folder / "driver.log"
        with self._log.open("wb") as log:
            self.driver = subprocess.Popen([sys.executable, *command], cwd=folder, stdout=log, stderr=log)

    @property
    def said(self) -> str:
        return self._log.read_text()

    def wait_until_nothing_is_left(self) -> None:
        self.wait_for("no process is left", lambda: not self.agents() and not descendants(self.folder))


def raylet_of(cluster: Cluster, agent: int) -> Any:
    """The raylet under which an agent runs."""
    (found,) = (node for node in cluster.worker_nodes if agent in family(node.all_processes["raylet"][0].process.pid))
    return found


def test_a_raylet_and_an_actor_are_killed(cluster: Cluster, launch: Callable[..., Driven]) -> None:
    settings = ("cluster.launcher=ray", f"cluster.nodes={NUM_RAYLETS}", f'cluster.ray.address="{cluster.address}"')
    command = ("train", "job.toml", *(word for setting in settings for word in ("--set", setting)))
    driven = launch("-m", "planaria.ui.cli.main", *command)
    driven.wait_for("three nodes train", lambda: driven.live_nodes == 3 and driven.step > 5)
    assert "waiting for 3 nodes; Ray runs an agent on each" in driven.said
    cluster.remove_node(raylet_of(cluster, driven.agents()[0]), allow_graceful=False)
    driven.wait_for("the node is lost", lambda: driven.events("node_lost"))
    cluster.add_node(**NODE)
    driven.wait_for("a new raylet takes its place", lambda: len(driven.events("node_joined")) == 4)

    actor = Path(f"/proc/{driven.agents()[0]}/status").read_text().partition("PPid:")[2].split()[0]
    os.kill(int(actor), signal.SIGKILL)
    driven.wait_for("the node is lost", lambda: len(driven.events("node_lost")) == 2)
    driven.wait_for("another actor takes its place", lambda: len(driven.events("node_joined")) == 5)
    driven.wait_for("three nodes train", lambda: driven.live_nodes == 3)
    labels = [event["label"] for event in driven.events("node_joined")]
    assert sorted(set(labels)) == ["agent-0", "agent-1", "agent-2"]

    driven.command("stop", "runs/job")
    assert driven.driver.wait(DEADLINE_S) == 0, driven.said
    driven.wait_until_nothing_is_left()
    driven.compare()


def test_a_draining_node_hands_over_and_a_killed_driver_leaves_nothing(
    cluster: Cluster, launch: Callable[..., Driven]
) -> None:
    driven = launch("-c", DRIVER, cluster.address)
    driven.wait_for("two nodes train", lambda: driven.live_nodes == 2 and driven.step > 5)
    leaving = raylet_of(cluster, driven.agents()[0])
    GcsClient(address=cluster.address).drain_node(leaving.node_id, PREEMPTION, "a test", (1 << 63) - 1)
    driven.wait_for("it is released", lambda: driven.events("node_released"))
    driven.wait_for("the spare takes its place", lambda: driven.events("node_joined") and driven.live_nodes == 2)
    assert not driven.events("node_lost")
    driven.driver.kill()
    driven.wait_until_nothing_is_left()
    cluster.remove_node(leaving)
    cluster.add_node(**NODE)


def test_a_run_grows_and_a_node_that_it_has_grown_by_is_replaced(
    cluster: Cluster, launch: Callable[..., Driven]
) -> None:
    command = ("launch", "ray", "job.toml", "--nodes", f"2-{NUM_RAYLETS}", "--address", cluster.address)
    driven = launch("-m", "planaria.ui.cli.main", *command)
    driven.wait_for("two nodes train", lambda: driven.live_nodes >= 2 and driven.step > 0)
    driven.wait_for("a third one comes", lambda: driven.live_nodes == NUM_RAYLETS)
    nodes = [raylet_of(cluster, agent) for agent in driven.agents()]
    assert len({node.node_id for node in nodes}) == NUM_RAYLETS
    cluster.remove_node(raylet_of(cluster, max(driven.agents())), allow_graceful=False)
    driven.wait_for("the node is lost", lambda: driven.events("node_lost"))
    cluster.add_node(**NODE)
    driven.wait_for("a new raylet takes its place", lambda: driven.live_nodes == NUM_RAYLETS)
    driven.command("stop", "runs/job")
    assert driven.driver.wait(DEADLINE_S) == 0, driven.said
    driven.wait_until_nothing_is_left()
    driven.compare()


def test_a_node_that_was_given_back_is_asked_for_when_the_run_wants_it_again(
    cluster: Cluster, launch: Callable[..., Driven], tmp_path: Path
) -> None:
    price = tmp_path / "price"
    price.write_text("1.0")
    command = ["launch", "ray", "job.toml", "--nodes", f"2-{NUM_RAYLETS}", "--address", cluster.address]
    for setting in ("price_command=cat price", "price_every_s=0.5", "per_hour=3.5"):
        command += ["--set", f"budget.{setting}"]
    driven = launch("-m", "planaria.ui.cli.main", *command)
    driven.wait_for("three nodes train", lambda: driven.live_nodes == NUM_RAYLETS)
    price.write_text("1.5")
    driven.wait_for("one is given back", lambda: driven.events("node_released"))
    (name,) = {event["label"] for event in driven.events("node_joined") if event["node"] == _released(driven)}
    before = driven.step
    driven.wait_for("two nodes train", lambda: driven.step >= before + 20)
    assert (len(driven.agents()), driven.live_nodes) == (2, 2), "it stays with Ray while it costs too much"
    price.write_text("1.0")
    driven.wait_for("it comes back", lambda: driven.live_nodes == NUM_RAYLETS)
    assert [event["label"] for event in driven.events("node_joined")][NUM_RAYLETS:] == [name]
    assert f"task {name} was given back, and is started again" in driven.said
    assert not driven.events("node_lost")
    driven.command("stop", "runs/job")
    assert driven.driver.wait(DEADLINE_S) == 0, driven.said
    driven.wait_until_nothing_is_left()
    driven.compare()


def _released(driven: Driven) -> int:
    (released,) = driven.events("node_released")
    return int(released["node"])


@pytest.mark.parametrize(
    ("options", "says", "remedy"),
    [
        (("--address", "127.0.0.1:1"), "cluster.ray.address = '127.0.0.1:1': no Ray cluster is there", "ray start"),
        (("--address", "ray://127.0.0.1:1"), "not HOST:PORT", "ray start"),
        (("--nodes", "9", "--wait", "0.1"), "9 nodes with 1 CPU", "--nodes"),
        (("--name", "there"), "exists already", "--resume"),
        (("--name", "nowhere", "--resume"), "does not exist", "without --resume"),
    ],
)
def test_a_mistake_is_one_line(
    cluster: Cluster, tmp_path: Path, options: Sequence[str], says: str, remedy: str
) -> None:
    run = WatchedRun(tmp_path, os.environ)
    (tmp_path / "runs" / "there").mkdir(parents=True)
    refused = run.planaria("launch", "ray", "job.toml", "--nodes", "2", "--address", cluster.address, *options)
    assert refused.returncode == 2
    line = refused.stderr.splitlines()[-1]
    assert says in line
    assert remedy in line
    assert "Traceback" not in refused.stderr
