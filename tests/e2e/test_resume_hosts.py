"""A run on agents whose coordinator's host is gone, or that is suspended: who comes back, and to what."""

from __future__ import annotations

from pathlib import Path
from signal import Signals

from tests.e2e.agents import NUM_NODES, Hosts
from tests.e2e.commands import DEADLINE_S, wait_until
from tests.e2e.incubator import Incubator


def test_a_run_is_resumed_at_once(folder: Path, incubator: Incubator) -> None:
    """Its agents wait, and so do their workers, who show the token that the run still has."""
    hosts = Hosts(folder, incubator)
    train = hosts.train()
    for _ in range(NUM_NODES):
        hosts.start_agent()
    hosts.wait_for("checkpoint_saved", 2)
    train.kill()
    train.wait(DEADLINE_S)
    before = hosts.last_step
    assert all(agent.process.poll() is None for agent in hosts.agents)
    resumed = hosts.train("--resume")
    assert wait_until(lambda: resumed.poll() is not None or hosts.last_step >= before + 5)
    assert resumed.poll() is None, hosts.said
    assert not hosts.events("node_lost"), "nobody joined who was not started for this"
    assert not hosts.events("run_ended")
    resumed.send_signal(Signals.SIGTERM)
    assert resumed.wait(DEADLINE_S) == 128 + Signals.SIGTERM
    assert [agent.wait() for agent in hosts.agents] == [75] * NUM_NODES


def test_agents_of_a_run_that_is_over_end(folder: Path, incubator: Incubator) -> None:
    hosts = Hosts(folder, incubator, steps=8)
    train = hosts.train()
    for _ in range(NUM_NODES):
        hosts.start_agent()
    assert train.wait(DEADLINE_S) == 0, hosts.said
    assert [agent.wait() for agent in hosts.agents] == [0] * NUM_NODES
    assert "the run is over" in hosts.agents[0].said
