"""Random schedules in which all computation is audited: who computes wrong is named before a step is committed.

The checker of invariants holds every commit against the reference, and every node that is named against who was struck.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from planaria.protocol.messages.records import ComputedWrong, Note
from tests.proof import batches
from tests.testkit.cluster.cluster import Cluster
from tests.testkit.schedules.corruption import audited, watched
from tests.testkit.schedules.schedule import Schedule


def ran(make: Callable[[int], Schedule], seeds: range) -> Counter[str]:
    """Runs the schedules; fails with all that broke a promise."""
    broken, seen = [], Counter[str]()
    for seed in seeds:
        cluster = Cluster(make(seed))
        try:
            cluster.run()
        except Exception as error:  # a broken promise, or whatever the protocol raised
            broken.append(f"{make.__name__}({seed}): {type(error).__name__}: {str(error)[:200]}")
        for record in cluster.invariants.records:
            seen["computation"] += isinstance(record, ComputedWrong) and record.held == "computation"
            seen["again"] += isinstance(record, Note) and record.text.startswith("computations of ")
            seen["messages"] += isinstance(record, Note) and record.text.startswith("messages of ")
    assert not broken
    return seen


@pytest.mark.parametrize("seeds", batches(range(150), size=60, kept=30), ids=str)
def test_what_a_node_computes_wrong_is_never_committed(seeds: range) -> None:
    seen = ran(audited, seeds)
    assert seen["computation"] > len(seeds) // 4, "too few are named for this to show anything"
    assert seen["messages"] > len(seeds) // 20
    assert seen["again"] + seen["messages"] >= seen["computation"], "nobody is named before the step is begun anew"


@pytest.mark.parametrize("seeds", batches(range(150), size=60, kept=30), ids=str)
def test_audits_accuse_nobody_and_hold_up_nothing_whatever_happens(seeds: range) -> None:
    seen = ran(watched, seeds)
    assert not seen["computation"] + seen["again"] + seen["messages"]
