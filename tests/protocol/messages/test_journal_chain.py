"""The journal's bytes: an entry has what differs from those before it, and is read as it was written."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from planaria.plan.plan import NodeId
from planaria.protocol.messages.journal import AnyEntry, Fate, JournalNode, JournalPlan, PlanValidityState, encode_entry
from planaria.protocol.messages.journal_chain import JournalChain, decode_written
from planaria.protocol.messages.plan_delta import UpdateError
from planaria.protocol.messages.run_measurements import HostLink, KnownLinks, RunMeasurements
from tests.protocol.messages.test_plan_delta import history

STAND = PlanValidityState(placed=(NodeId(0),), needed=(), newcomers=(), is_warming=False)
LINKS = KnownLinks(
    hosts={NodeId(0): "a", NodeId(1): "b"},
    probed=(HostLink(one="a", other="b", latency_s=1e-4, bytes_per_s=1e9),),
)
SLOWER = msgspec.structs.replace(LINKS, slowdown=2.0)


def lost(node: int, learnt: RunMeasurements | None) -> JournalNode:
    return JournalNode(node=NodeId(node), fate=Fate.LOST, cause="killed", learnt=learnt)


def entries_of(seed: int) -> list[AnyEntry]:
    """A run's plans, with losses between them that tell what was learnt: now and then other links, and once none."""
    found: list[AnyEntry] = []
    for number, message in enumerate(history(seed)):
        links = KnownLinks() if number == 0 else SLOWER if number in (5, 6, 9) else LINKS
        learnt = RunMeasurements(decision_s=float(number), links=links)
        found.append(lost(number, learnt if number % 3 else None))
        found.append(JournalPlan(message=message, stand=STAND, step_time_s=0.5, longest_s=0.1, learnt=learnt))
    return found


def written(chain: JournalChain, entries: Sequence[AnyEntry]) -> list[bytes]:
    return [chain.encode(entry) for entry in entries]


def read(bodies: Sequence[bytes]) -> list[AnyEntry]:
    chain = JournalChain()
    return [chain.decode(body) for body in bodies]


@pytest.mark.parametrize("seed", range(4))
def test_entries_are_read_as_they_were_written(seed: int) -> None:
    entries = entries_of(seed)
    assert read(written(JournalChain(), entries)) == entries


def test_whoever_goes_on_with_a_journal_writes_what_its_first_writer_would_have() -> None:
    entries = entries_of(1)
    bodies = written(JournalChain(), entries)
    for cut in range(len(entries)):
        chain = JournalChain()
        assert [chain.decode(body) for body in bodies[:cut]] == entries[:cut]
        assert written(chain, entries[cut:]) == bodies[cut:]


def test_a_loss_writes_neither_the_whole_plan_nor_the_links_again() -> None:
    entries = entries_of(1)
    bodies = written(JournalChain(), entries)
    whole = [number for number, entry in enumerate(entries) if encode_entry(entry) == bodies[number]]
    plans = [number for number, entry in enumerate(entries) if isinstance(entry, JournalPlan)]
    assert [number for number in whole if number in plans] == plans[:1]
    learnt = [entry for entry in map(decode_written, bodies) if entry.learnt is not None]
    assert [entry.has_links_before for entry in learnt].count(False) == 6, "none at first, then five others"
    assert sum(map(len, bodies)) < sum(len(encode_entry(entry)) for entry in entries) / 2


def test_what_an_earlier_version_wrote_whole_is_read_and_added_to() -> None:
    entries = entries_of(2)
    half = len(entries) // 2
    bodies = [encode_entry(entry) for entry in entries[:half]]
    chain = JournalChain()
    assert [chain.decode(body) for body in bodies] == entries[:half]
    assert read([*bodies, *written(chain, entries[half:])]) == entries


def test_an_update_of_a_plan_that_is_missing_is_refused() -> None:
    entries = [entry for entry in entries_of(3) if isinstance(entry, JournalPlan)]
    bodies = written(JournalChain(), entries)
    with pytest.raises(UpdateError, match="came before any plan"):
        JournalChain().decode(bodies[1])
    with pytest.raises(UpdateError, match="came after plan"):
        read([bodies[0], bodies[2]])
