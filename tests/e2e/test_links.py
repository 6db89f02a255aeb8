"""Links between hosts that are network namespaces, slowed by tc: measured when they join, told, and planned with."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from planaria.protocol.thresholds import CALIBRATED_AFTER, FLOWS_EVERY
from tests.e2e.commands import wait_until
from tests.e2e.incubator import Incubator
from tests.e2e.network import Farm, NoNamespaces, farm
from tests.e2e.test_partition import Cluster

NUM_NODES = 4
MBIT = 200

MODEL = """
[model]
type = "gpt2"
config = { n_layer = 4, n_embd = 64, n_head = 2, n_positions = 16 }
[data]
source = "text.txt"
"""


@pytest.fixture
def slow_hosts(incubator: Incubator, tmp_path: Path) -> Iterator[Farm]:
    try:
        with farm(NUM_NODES + 1, tmp_path, incubator) as made:
            made.network.limit(MBIT * 1e6)
            yield made
    except NoNamespaces as reason:
        pytest.skip(f"network namespaces cannot be made here: {reason}")


def test_links_are_measured_and_planned_with(slow_hosts: Farm, tmp_path: Path, text: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    cluster = Cluster(slow_hosts, folder, text, MODEL, NUM_NODES).start()
    state = json.loads(cluster.ask("status", "runs/job", "--json"))
    (link,) = state["links"]
    assert link["name"] == "between_nodes"
    assert 8 * link["bytes_per_s"] == pytest.approx(MBIT * 1e6, rel=0.2)
    assert re.search(r"between nodes +\d  0\.\d\d ms +\d+ Mbit/s", cluster.ask("status", "runs/job"))
    (plan, *_) = cluster.events("plan_taken")
    profile = json.loads((cluster.run / "profile.json").read_text())
    state_s = sum(group["size_bytes"] for group in profile["groups"]) / 2 / (MBIT * 1e6 / 8)
    assert plan["estimated_step_s"] > state_s, "each of two stages is summed over the slow link"


def is_settled(cluster: Cluster) -> bool:
    """Whether the plan's first steps are over, which would take a slow link for an estimate that was off."""
    learnt = [event["step"] for kind in ("plan_taken", "estimate_corrected") for event in cluster.events(kind)]
    return cluster.events("step_committed")[-1]["step"] > max(learnt) + 2 * CALIBRATED_AFTER


@pytest.mark.proof
def test_a_link_that_becomes_slow_is_seen_and_planned_with(slow_hosts: Farm, tmp_path: Path, text: Path) -> None:
    """By what messages and sums reach, while training goes on."""
    folder = tmp_path / "job"
    folder.mkdir()
    cluster = Cluster(slow_hosts, folder, text, MODEL, NUM_NODES).start()
    cluster.wait_for_steps(3 * FLOWS_EVERY)
    assert wait_until(lambda: is_settled(cluster))
    weak = slow_hosts.network.hosts[1]
    slow_hosts.network.limit(MBIT * 1e5, weak)
    changed = cluster.wait_for("link_changed")
    assert all(weak.address in event["hosts"] and event["factor"] < 0.5 for event in changed)
    assert "times slower than before" in cluster.train.said
    names = {link["name"] for link in json.loads(cluster.ask("status", "runs/job", "--json"))["links"]}
    assert any(weak.address in name for name in names), "a pair far off its class"
