"""Tests of plans that the witness makes whole."""

from __future__ import annotations

import msgspec
import pytest

from planaria.protocol.messages.journal import decode_entry
from planaria.protocol.messages.journal_chain import JournalChain
from tests.testkit.cluster.cluster import Cluster
from tests.testkit.schedules.schedule import schedule
from tests.testkit.witness.plan_updates import whole

_plain = msgspec.msgpack.decode


def test_a_plan_is_made_whole_as_the_protocol_makes_it() -> None:
    num_updates = 0
    for seed in range(6):
        cluster = Cluster(schedule(seed))
        cluster.run()
        chain = JournalChain()
        written = [_plain(chain.encode(decode_entry(body))) for body in cluster.journal]
        num_updates += sum(entry["type"] == "plan_update" for entry in written)
        right = [entry["message"] for entry in map(_plain, cluster.journal) if entry["type"] == "plan"]
        assert [entry["message"] for entry in whole(written) if entry["type"] == "plan"] == right
    assert num_updates > 10


def test_an_update_of_another_plan_is_refused() -> None:
    with pytest.raises(ValueError, match="plan 7 is written as an update of 5"):
        whole([{"type": "plan_update", "update": {"base": 5, "generation": 7}}])
