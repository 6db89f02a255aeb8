"""What stands for the old entries of a long journal says all that they said."""

from __future__ import annotations

import pytest

from planaria.protocol.messages.journal import AnyEntry, JournalDisputes, JournalPast, OpenDispute, encode_entry
from planaria.protocol.messages.journal_chain import JournalChain
from planaria.protocol.run.replay import JournalState
from planaria.runtime.journal.journal import past_of
from tests.testkit.cluster.cluster import Cluster
from tests.testkit.schedules.schedule import schedule
from tests.testkit.witness.history import History
from tests.testkit.witness.plan_updates import whole
from tests.testkit.witness.run_folder import plain_entry
from tests.testkit.witness.witness import judge

SEEDS = (1, 5, 8, 13, 21, 22, 34, 55)


def thinned(cluster: Cluster, most: int) -> tuple[list[AnyEntry], list[bytes]]:
    """Returns the entries of a cluster's journal, and the bytes of one that has the newest whole."""
    writer, reader = JournalChain(), JournalChain()
    entries = [reader.decode(entry) for entry in cluster.journal]
    written = [writer.encode(entry) for entry in entries]
    cut = len(entries) - most
    return entries, [past_of(written[:cut]), *written[cut:]]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_journal_that_was_thinned_anywhere_says_the_same(seed: int) -> None:
    cluster = Cluster(schedule(seed))
    cluster.run()
    for most in range(len(cluster.journal) + 1):
        entries, bodies = thinned(cluster, most)
        chain = JournalChain()
        left = [chain.decode(body) for body in bodies]
        assert left[1:] == entries[len(entries) - most :]
        for missing in range(0, most, 7):  # a disk may lose its end
            end = len(left) - missing
            assert JournalState.of(left[:end]) == JournalState.of(entries[: len(entries) - missing])


@pytest.mark.parametrize("seed", SEEDS)
def test_the_witness_finds_nothing_wrong_in_a_journal_that_was_thinned(seed: int) -> None:
    cluster = Cluster(schedule(seed))
    cluster.run()
    (kind, facts), *history = cluster.recorder.history()
    if any(entry[0] == "cut" for entry in history):
        pytest.skip("its disk lost entries")
    places = [at for at, entry in enumerate(history) if entry[0] == "journal"]
    assert len(places) == len(cluster.journal)
    for most in range(len(places)):
        _, bodies = thinned(cluster, most)
        left = iter(whole(plain_entry(body) for body in bodies))
        first = places[len(places) - most - 1]
        told: History = [(kind, {**facts, "is_whole": False, "has_votes": False})]
        for at, entry in enumerate(history):
            if entry[0] == "told" or (entry[0] == "journal" and at >= first):
                told.append(("journal", next(left)) if entry[0] == "journal" else entry)
        assert not judge(told, knows_faults=False), most


def test_a_state_without_a_plan_is_written_too() -> None:
    state = JournalState()
    chain = JournalChain()
    entry = chain.decode(encode_entry(state.written()))
    assert isinstance(entry, JournalPast)
    assert JournalState.of([entry]) == state


def test_a_dispute_that_is_open_stays_open() -> None:
    dispute = OpenDispute(step=2, held="sum", items=(0, (1, 2, 3, (4,), "forward")), claims=(), num_dropped=0)
    state = JournalState.of([JournalDisputes(disputes=(dispute,))])
    assert JournalState.of([state.written()]).disputes == (dispute,)
