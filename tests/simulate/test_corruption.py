"""Random schedules in which a node computes wrong: no step is committed with it, and nobody else is named.

The checker of invariants holds every commit, sum, evaluation and record against the reference and who was struck.
"""

from __future__ import annotations

from collections import Counter

import pytest

from planaria.protocol.messages.records import ComputedWrong, NodeLost, Restored
from tests.proof import batches
from tests.testkit.cluster.cluster import Cluster
from tests.testkit.schedules.corruption import corrupted


@pytest.mark.parametrize("seeds", batches(range(1000), size=100, kept=40), ids=str)
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
