"""What nodes are called stays known when the coordinator is replaced, and leads from a lost node to its successor."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from planaria.protocol.messages.user import RunState, Wish
from planaria.runtime.coordinator.client import Contact, NotReached, ask
from tests.e2e.agents import NUM_NODES, Hosts, family
from tests.e2e.commands import wait_until
from tests.e2e.incubator import Incubator
from tests.e2e.test_restart_hosts import coordinators


def state_of(hosts: Hosts) -> RunState | None:
    try:
        return ask(Contact.read(hosts.run.contact), Wish.STATUS, run="job").state
    except NotReached:
        return None


def labels_of(hosts: Hosts) -> list[str]:
    """Of live nodes."""
    state = state_of(hosts)
    return [] if state is None else sorted(state.labels.values())


def test_labels_stay_with_nodes_and_lead_to_the_successor_of_a_lost_one(folder: Path, incubator: Incubator) -> None:
    hosts = Hosts(folder, incubator)
    train = hosts.train()
    names = [f"rack-{number}" for number in range(NUM_NODES)]
    for name in names:
        hosts.start_agent("--label", name)
    hosts.wait_for_step(3)
    assert labels_of(hosts) == names
    (coordinator,) = coordinators(train.pid)
    os.kill(coordinator, signal.SIGKILL)
    hosts.wait_for("coordinator_restarted")
    assert wait_until(lambda: labels_of(hosts) == names)

    for pid in family(hosts.agents[1].process.pid):
        os.kill(pid, signal.SIGKILL)
    hosts.wait_for("node_lost")
    assert wait_until(lambda: labels_of(hosts) == [names[0], *names[2:]])
    successor = hosts.start_agent("--label", names[1])
    assert wait_until(lambda: labels_of(hosts) == names)
    hosts.wait_for("node_joined", NUM_NODES + 1)
    assert wait_until(lambda: f"node {successor.node} ({names[1]}) joined" in hosts.said)
    (lost,) = hosts.events("node_lost")
    joined = {event["node"]: event["label"] for event in hosts.events("node_joined")}
    assert joined[lost["node"]] == joined[successor.node] == names[1]
