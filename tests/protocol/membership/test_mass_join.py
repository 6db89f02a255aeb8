"""Thousands of nodes that join at once: nobody looks at all of them for one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from planaria.plan.plan import NodeId, WorkerId
from planaria.protocol.coordinator import Coordinator
from planaria.protocol.messages.events import LinksMeasured, WorkerJoined
from planaria.protocol.messages.journal import JournalNode
from planaria.protocol.messages.run_measurements import HostLink
from planaria.protocol.phases import Phase
from tests.protocol.planning.test_node_count import LEAST, Job

LOOKS = Counter[str]()
WRITTEN = "entries of the journal with the links of all"


class Looked(int):
    """A worker's number that counts how often it is compared or looked up."""

    def __hash__(self) -> int:
        LOOKS[""] += 1
        return int(self)

    def __eq__(self, other: object) -> bool:
        LOOKS[""] += 1
        return int(self) == other

    def __lt__(self, other: int) -> bool:
        LOOKS[""] += 1
        return int(self) < int(other)

    def __floordiv__(self, other: int) -> Looked:
        return Looked(int(self) // other)


def looks_of_joins(job: Job, first: int, count: int) -> int:
    """Counts looks at nodes' numbers while so many are started and join, each in one of four zones."""
    LOOKS.clear()
    for number in map(Looked, range(first, first + count)):
        host, zone = f"host {int(number)}", f"zone {number % 4}"
        assert job.machine.no_room(Counter({zone: 5}), Counter({zone: 1})) is None
        assert job.machine.is_coming(NodeId(number))
        link = HostLink(one=host, other="host 0", latency_s=1e-4, bytes_per_s=1e9)
        job.machine.handle(LinksMeasured(NodeId(number), host, (link,)), job.now)
        (entry, _) = job.machine.handle(WorkerJoined(WorkerId(number), f"{host}:1", zone), job.now)
        assert isinstance(entry, JournalNode)
        LOOKS[WRITTEN] += entry.learnt is not None
        assert not job.machine.is_coming(NodeId(number))
    return LOOKS[""]


@pytest.mark.parametrize("settings", [{}, {"price": 1.0, "per_hour": 1e6}])
@pytest.mark.parametrize("is_gathering", [True, False])
def test_a_node_that_joins_costs_no_more_for_there_being_others(is_gathering: bool, settings: dict[str, Any]) -> None:
    job = Job(num_microbatches=4, most=1000, **settings)
    if is_gathering:
        job.machine = Coordinator(replace(job.settings, num_nodes=1000), job.policy)
    job.join(*range(LEAST))
    assert job.machine.phase is (Phase.GATHERING if is_gathering else Phase.TRAINING)
    few = looks_of_joins(job, 100, 100)
    written = LOOKS[WRITTEN]
    many = looks_of_joins(job, 200, 100)
    assert 0 < many <= few
    assert 0 < LOOKS[WRITTEN] < written < 30
    assert job.machine.state.nodes[-200:] == tuple(range(100, 300))
