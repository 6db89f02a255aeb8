"""What `planaria.plan.costs.byte_counts` says, against counters of real workers on hosts that are network namespaces.

Held and moved state are equal to the byte. What sockets send is 1.00 to 1.03 of what is said: frames have headers, and
exact sums a list of what 32 bits do not hold.
"""

from __future__ import annotations

import itertools
import json
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planaria.plan.costs.byte_counts import NUMERICS, held_bytes, message_bytes, part_bytes, read_from_hosts
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.costs.profile_check import decode_profile
from planaria.plan.sums.slices import slices_of
from tests.e2e.incubator import ROOT, Incubator
from tests.e2e.network import Farm, NoNamespaces, farm
from tests.e2e.test_partition import Cluster

NUM_NODES = 4
"""Two pipelines of two stages."""

STEPS = 8
MODEL = """
[model]
type = "telling_layers:telling"
config = { width = 128, depth = 4 }
[data]
source = "text.txt"
"""


@pytest.fixture
def hosts(incubator: Incubator, tmp_path: Path) -> Iterator[Farm]:
    try:
        with farm(NUM_NODES + 1, tmp_path, incubator) as made:
            yield made
    except NoNamespaces as reason:
        pytest.skip(f"network namespaces cannot be made here: {reason}")


def started(hosts: Farm, folder: Path, text: Path, numerics: str) -> Cluster:
    folder.mkdir()
    for module in (ROOT / "examples" / "layers.py", Path(__file__).parent / "telling_layers.py"):
        (folder / module.name).write_text(module.read_text())
    (folder / "coordinator").write_text(hosts.network.hosts[0].address)
    cluster = Cluster(hosts, folder, text, MODEL, NUM_NODES)
    job = folder / "job.toml"
    job.write_text(job.read_text().replace("[train]\n", f'[train]\nnumerics = "{numerics}"\n'))
    return cluster.start()


def told(folder: Path, what: str) -> list[dict[str, Any]]:
    lines = itertools.chain.from_iterable(
        file.read_text().splitlines(keepends=True) for file in sorted(folder.glob("told-*.jsonl"))
    )
    found = [json.loads(line) for line in lines if line.endswith("\n")]
    return [line for line in found if what in line]


def expected_sent(profile: ModelProfile, plan: dict[str, Any]) -> dict[int, float]:
    """Bytes that each worker sends in a step."""
    sent: Counter[int] = Counter()
    owners: dict[int, set[int]] = {}
    for stages, microbatches in zip(plan["pipelines"], plan["microbatches"], strict=True):
        for worker, first, end in stages:
            for number, group in enumerate(profile.groups):
                if any(first <= layer < end for layer in group.layers):
                    owners.setdefault(number, set()).add(worker)
        for (one, _, end), (other, *_) in itertools.pairwise(stages):
            for sender in (one, other):  # an activation there, and its gradient back
                sent[sender] += message_bytes(profile, end) * microbatches
    for number, workers in owners.items():
        own = sorted(workers)
        slices, counting = slices_of(own, own), frozenset(own)  # type: ignore[arg-type]
        for worker in own:
            size_bytes = part_bytes(profile.groups[number])
            for sender, size in read_from_hosts(slices, worker, counting, size_bytes):  # type: ignore[arg-type]
                sent[sender] += size  # type: ignore[assignment]
    return dict(sent)


@pytest.mark.proof
@pytest.mark.parametrize("numerics", ["exact", "fast"])
def test_workers_hold_and_send_what_is_said(numerics: str, hosts: Farm, tmp_path: Path, text: Path) -> None:
    cluster = started(hosts, folder := tmp_path / "job", text, numerics)
    first = cluster.wait_for_steps(2)
    cluster.wait_for_steps(STEPS + 2)
    profile = decode_profile((cluster.run / "profile.json").read_bytes())
    (*_, plan) = cluster.events("plan_taken")
    assert [len(stages) for stages in plan["pipelines"]] == [2, 2]
    rows = {(row["worker"], row["step"]): row for row in told(folder, "held")}
    workers = {worker for worker, _ in rows}
    assert len(workers) == NUM_NODES
    for worker in workers:
        held = rows[worker, first]["held"]
        assert held == {group: sum(held_bytes(profile, profile.groups[int(group)])) for group in held}
    whole = sum(sum(rows[worker, first]["held"].values()) for worker in workers)
    of_layers = 2 * sum(layer.state_bytes for layer in profile.layers)
    parameters = sum(group.size_bytes for group in profile.groups) // NUMERICS[numerics].parameter
    assert 2 * NUMERICS[numerics].state * parameters <= whole == of_layers, "tied parameters are held at both ends"
    said = expected_sent(profile, plan)
    for worker in workers:
        sent = (rows[worker, first + STEPS]["sent"] - rows[worker, first]["sent"]) / STEPS
        assert 1.0 <= sent / said[worker] <= 1.03, (worker, sent, said)


@pytest.mark.proof
def test_what_moves_is_what_is_said(hosts: Farm, tmp_path: Path, text: Path) -> None:
    """A node is lost, and comes back; every group that is moved to a worker has all its bytes, from one or several."""
    cluster = started(hosts, folder := tmp_path / "job", text, "exact")
    host = cluster.host_of(3)
    cluster.agents[host.name].signal(signal.SIGKILL)
    cluster.wait_for_plan_of(NUM_NODES - 1)
    cluster.wait_for_steps(2)
    cluster.start_agent(host)
    cluster.wait_for_plan_of(NUM_NODES)
    cluster.wait_for_steps(2)
    groups = decode_profile((cluster.run / "profile.json").read_bytes()).groups
    moved: Counter[tuple[int, int, int]] = Counter()
    for row in told(folder, "move"):
        move = row["move"]
        moved[move["plan"], move["group"], move["to"]] += move["bytes"]
    assert moved
    assert dict(moved) == {key: groups[key[1]].moved_bytes for key in moved}
