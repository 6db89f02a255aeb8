"""Hosts and members of etcd that are cut off: network namespaces, cables that are pulled, and the reference's bits."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from planaria.job.settings import Job
from tests.e2e.agents import NUM_NODES
from tests.e2e.commands import DEADLINE_S, wait_until
from tests.e2e.conftest import reference
from tests.e2e.incubator import Incubator
from tests.e2e.jobs import Outcome
from tests.e2e.network import Host, Network, NoNamespaces
from tests.engines.etcd_cluster import EtcdCluster
from tests.engines.led import Led

__all__ = ["reference"]

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed (Debian's etcd-server)"),
]

MEMBERS = 3
HEALTH = """
import http.client, sys
host, _, port = sys.argv[1].rpartition(":")
connection = http.client.HTTPConnection(host, int(port), timeout=1)
connection.request("GET", "/health")
print(connection.getresponse().read().decode())
"""
LEAD = """
import http.client, json, sys
def ask(address, path, request={}):
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=5)
    connection.request("POST", "/v3/maintenance/" + path, json.dumps(request))
    return json.loads(connection.getresponse().read())
members = sys.argv[1].split(",")
told = [ask(member, "status") for member in members]
numbers, wanted = [one["header"]["member_id"] for one in told], told[int(sys.argv[2])]["header"]["member_id"]
leaders = {one["leader"] for one in told}
if len(leaders) == 1 and wanted not in leaders:
    ask(members[numbers.index(*leaders)], "transfer-leadership", {"targetID": wanted})
print(leaders == {wanted})
"""


class OnHosts:
    """Starts commands on one host after the other, each of which calls itself by its address."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._started: list[subprocess.Popen[str]] = []
        self.next = network.hosts[0]

    def prefix(self, host: Host) -> list[str]:
        """What begins a command on a host."""
        called = f'echo {host.address} > /proc/sys/kernel/hostname; exec "$@"'
        entered = ["nsenter", "-t", str(host.pid), "-n", "unshare", "--uts", "sh", "-c", called, "sh"]
        return [*self._network.user_prefix(), *entered]

    def start(
        self,
        folder: Path,
        *arguments: str,
        log: Path | None = None,
        environment: Mapping[str, str] | None = None,
        hidden: Path | None = None,
    ) -> subprocess.Popen[str]:
        assert hidden is None
        command = [*self.prefix(self.next), sys.executable, "-m", "planaria.ui.cli.main", *arguments]
        with (log or folder / "command.log").open("ab") as file:
            process = subprocess.Popen(
                command, cwd=folder, env={**os.environ, **(environment or {})}, stdout=file, stderr=file, text=True
            )
        self._started.append(process)
        return process

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()


class Split(Led):
    """The leader, the standby and a third host have a member of etcd each; the nodes have hosts of their own."""

    def __init__(self, folder: Path, hosts: OnHosts, network: Network, etcd: EtcdCluster) -> None:
        super().__init__(folder, cast("Incubator", hosts), etcd)
        job = self.folder / "job.toml"
        job.write_text(job.read_text().replace("[cluster]\n", '[cluster]\nhost = "0.0.0.0"\n'))
        self._on = hosts
        self.network = network
        self.leader, self.follower, self.third, *self.nodes = network.hosts

    def start_agent(self, *arguments: str, folder: Path | None = None) -> Any:
        self._on.next = self.nodes[len(self.agents)]
        return super().start_agent(*arguments, folder=folder)

    def start_standby(self, number: int) -> Any:
        self._on.next = self.follower
        return super().start_standby(number)

    def stop(self) -> None:
        self._on.next = self.follower
        super().stop()

    def lead_etcd(self, member: int) -> None:
        """Has a member lead etcd, and waits until the others follow it."""
        script = [sys.executable, "-c", LEAD, self.url.removeprefix("etcd://"), str(member)]

        def leads() -> bool:
            try:
                return "True" in self.network.ask(self.leader.pid, script)
            except NoNamespaces:  # the command has failed: one does not answer now
                return False

        assert wait_until(leads), f"member {member} does not lead etcd"

    def stages(self, before: int, pulled: float) -> str:
        """Says how long what follows a cable that was pulled took.

        Args:
            before: the last step committed before.
            pulled: when, in seconds since 1970.
        """
        committed = {event["step"]: event["time"] for event in self.events("step_committed")}
        (restarted,) = self.events("coordinator_restarted")
        led = next(event["time"] for event in self.events("note") if "leads the run now" in event["text"])
        last = max(step for step, at in committed.items() if at < led)
        at = {
            "the last step": committed[last],
            "a standby leads": led,
            "all workers are back": restarted["time"],
            "the next step": committed[last + 1],
        }
        told = ", ".join(f"{name} {time_s - pulled:+.2f} s" for name, time_s in at.items())
        return f"pulled after step {before}: {told}; from step to step {committed[last + 1] - committed[last]:.2f} s"


@pytest.fixture
def split(tmp_path: Path) -> Iterator[Split]:
    try:
        network = Network(MEMBERS + NUM_NODES)
    except NoNamespaces as reason:
        pytest.skip(f"network namespaces cannot be made here: {reason}")
    with closing(network), closing(OnHosts(network)) as hosts:
        members = [(host.address, hosts.prefix(host)) for host in network.hosts[:MEMBERS]]
        (tmp_path / "etcd").mkdir()
        etcd = EtcdCluster(tmp_path / "etcd", MEMBERS, hosts=members)
        with closing(etcd):
            for member in range(MEMBERS):
                etcd.start(member)
            asked = etcd.url.removeprefix("etcd://").split(",")[0]

            def is_healthy() -> bool:
                try:
                    return "true" in network.ask(network.hosts[0].pid, [sys.executable, "-c", HEALTH, asked])
                except NoNamespaces:  # the command has failed: nobody listens yet
                    return False

            assert wait_until(is_healthy)
            yield Split(tmp_path, hosts, network, etcd)


def test_a_leader_that_is_cut_off_commits_nothing_and_the_majority_goes_on(
    split: Split, reference: Callable[[Job], Outcome]
) -> None:
    leader = split.begin()
    standby, _ = split.stand_by()
    split.network.pull(split.third)  # a minority that nobody needs
    split.wait_for_step(split.last_step + 3)
    split.network.plug(split.third)
    for member in (1, 0):  # all of them are in touch again; with the leader's host goes etcd's leader
        split.lead_etcd(member)
    before, pulled = split.last_step, time.time()
    split.network.pull(split.leader)
    split.wait_for("coordinator_restarted")
    split.wait_for_step(split.last_step + 5)
    print(split.stages(before, pulled))
    assert leader.poll() is None, "it still tries"
    split.network.plug(split.leader)
    assert leader.wait(DEADLINE_S) == 1
    assert f"{split.follower.address} leads run" in split.said
    split.wait_for_step(split.last_step + 3)
    assert not split.events("node_lost")
    assert not split.events("restored")
    split.stop()
    assert standby.wait(DEADLINE_S) == 0
    split.assert_same_bits(reference)
