"""Random schedules in which a node computes wrong: no step is committed with it, and nobody else is named.

The checker of invariants holds every commit, sum, evaluation and record against the reference and who was struck.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from planaria.plan.plan import NodeId
from planaria.protocol.messages.journal import JournalCommit, JournalDisputes, JournalRestart, decode_entry
from planaria.protocol.messages.records import ComputedWrong, NodeLost, Restored
from planaria.protocol.run.replay import JournalState
from planaria.protocol.run.run import Run
from tests.proof import batches
from tests.testkit.cluster.cluster import Cluster
from tests.testkit.promises.invariants import BrokenPromise
from tests.testkit.schedules.corruption import corrupted, succeeded


@pytest.mark.parametrize("seeds", batches(range(120), size=50, kept=20), ids=str)
def test_no_step_is_committed_with_what_a_node_computed_wrong(seeds: range) -> None:
    broken, seen = [], Counter[str]()
    for seed in seeds:
        cluster = Cluster(corrupted(seed))
        try:
            cluster.run()
        except Exception as error:  # a broken promise, or whatever the protocol raised
            broken.append(f"corrupted({seed}): {type(error).__name__}: {str(error)[:200]}")
        for record in cluster.invariants.records:
            seen["named"] += isinstance(record, ComputedWrong)
            seen["went back"] += isinstance(record, Restored) and "differ" in record.reason
            seen["lost"] += isinstance(record, NodeLost)
    assert not broken
    assert seen["named"] > len(seeds) // 5, "too few are found for this to show anything"
    assert seen["went back"]


@pytest.mark.parametrize("seeds", batches(range(124), size=60, kept=4), ids=str)
def test_a_coordinator_that_takes_over_knows_what_is_in_dispute_and_who_is_on_probation(seeds: range) -> None:
    """The witness reads which audits it orders."""
    broken, seen = [], Counter[str]()
    for seed in seeds:
        cluster = Cluster(succeeded(seed))
        try:
            cluster.run()
        except Exception as error:  # a broken promise, or whatever the protocol raised
            broken.append(f"succeeded({seed}): {type(error).__name__}: {str(error)[:200]}")
        entries, left = [decode_entry(entry) for entry in cluster.journal], dict[NodeId, int]()
        for entry in entries:
            seen["amid probation"] += isinstance(entry, JournalRestart) and bool(left)
            left = dict(entry.probation) if isinstance(entry, JournalCommit) else left
        is_open = any(isinstance(entry, JournalDisputes) and entry.disputes for entry in entries)
        is_named = any(isinstance(record, ComputedWrong) for record in cluster.invariants.records)
        seen["open"] += is_open
        lost = {record.node for record in cluster.invariants.records if isinstance(record, NodeLost)}
        if others := lost - cluster.invariants.struck:
            broken.append(f"succeeded({seed}): nodes {sorted(others)} are lost, and were right")
        if is_open and not is_named:
            broken.append(f"succeeded({seed}): nobody is named for what was in dispute")
    assert not broken
    assert seen["open"] > len(seeds) // 2, "too few are in dispute for this to show anything"
    assert seen["amid probation"] > len(seeds) // 2


def test_a_coordinator_that_forgets_who_is_on_probation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Run._begin_with

    def forgetful(run: Run, past: JournalState) -> None:
        begin(run, replace(past, probation={}))

    monkeypatch.setattr(Run, "_begin_with", forgetful)
    with pytest.raises(BrokenPromise, match="the witness: PROBATION"):
        Cluster(succeeded(1)).run()
