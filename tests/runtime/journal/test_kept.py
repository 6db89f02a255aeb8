"""What is removed of a long journal: nothing that a successor or the witness reads."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from planaria.plan.plan import NodeId
from planaria.protocol.messages.journal import (
    AnyEntry,
    Fate,
    JournalCommit,
    JournalDisputes,
    JournalNode,
    JournalRecovery,
    JournalVoid,
    OpenDispute,
    decode_entry,
)
from planaria.protocol.messages.to_worker import Commit
from planaria.protocol.run.replay import JournalState
from planaria.runtime.journal import journal as journal_module
from planaria.runtime.journal.journal import kept
from tests.testkit.cluster.cluster import Cluster
from tests.testkit.schedules.schedule import schedule
from tests.testkit.witness.history import History
from tests.testkit.witness.witness import judge

SEEDS = (1, 5, 8, 13, 21, 22)


@pytest.fixture(autouse=True)
def _few_are_kept_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "COMMITS_KEPT", 1)


def thinned(entries: list[AnyEntry]) -> list[AnyEntry]:
    return [entries[at] for at in kept(entries)]


def commit(step: int) -> JournalCommit:
    told = Commit(
        generation=1, step=step, clip_factor=0.5, exponents=(4,), hold=False, loss=1.5, norm=2.5, learning_rate=0.5
    )
    return JournalCommit(commit=told)


def node(number: int, fate: Fate) -> JournalNode:
    return JournalNode(node=NodeId(number), fate=fate)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_journal_that_was_thinned_anywhere_says_the_same(seed: int) -> None:
    cluster = Cluster(schedule(seed))
    cluster.run()
    entries = [decode_entry(entry) for entry in cluster.journal]
    for at in range(len(entries) + 1):
        assert JournalState.of([*thinned(entries[:at]), *entries[at:]]) == JournalState.of(entries)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_witness_finds_nothing_wrong_in_a_journal_that_was_thinned(seed: int) -> None:
    cluster = Cluster(schedule(seed))
    cluster.run()
    (kind, facts), *history = cluster.recorder.history()
    if any(entry[0] == "cut" for entry in history):
        pytest.skip("its disk lost entries")
    places = [at for at, entry in enumerate(history) if entry[0] == "journal"]
    left = {places[at] for at in kept([decode_entry(entry) for entry in cluster.journal])}
    assert len(places) == len(cluster.journal)
    told: History = [(kind, {**facts, "is_whole": False, "has_votes": False})]
    told += [entry for at, entry in enumerate(history) if entry[0] == "told" or at in left]
    assert not judge(told, knows_faults=False)


@pytest.mark.parametrize(
    ("between", "number"),
    [
        (lambda step: [node(step, Fate.JOINED), node(step, Fate.LEAVING)], 2 * 20 + 1),
        (lambda step: [JournalVoid()], 20 + 21),
        (lambda step: [node(step, Fate.LOST), JournalRecovery()], 20 + 1 + 1),
        (lambda step: [node(2, Fate.LEAVING)] if step < 9 else [node(step - 7, Fate.RELEASED)], 13 + 1),
        (lambda step: [], 1),
    ],
)
def test_no_commit_is_kept_for_nodes_that_come_and_go(between: Callable[[int], list[AnyEntry]], number: int) -> None:
    entries: list[AnyEntry] = [commit(1)]
    for step in range(2, 22):
        entries += [*between(step), commit(step)]
    assert len(thinned(entries)) == number


def test_a_dispute_that_a_commit_settled_stays_settled() -> None:
    dispute = OpenDispute(step=2, held="sum", items=(0,), claims=(), num_dropped=0)
    entries = [commit(1), JournalDisputes(disputes=(dispute,)), commit(2), commit(3)]
    assert JournalState.of(thinned(entries)).disputes == JournalState.of(entries).disputes == ()
