"""Several nodes whose sums were wrong in one step: each is suspected, and wrong the second time."""

from __future__ import annotations

import pytest

from planaria.plan.plan import WorkerId
from planaria.protocol.handlers.salvage import _suspected_twice, _undo
from planaria.protocol.messages.from_worker import Digest
from planaria.protocol.messages.journal import JournalVoid
from planaria.protocol.step.agreement import Difference, Held, difference
from tests.protocol.test_devices_alone import Job


def denied(held: Held, *workers: int) -> dict[WorkerId, Difference]:
    return {WorkerId(worker): Difference(held=held, groups=(0,), wrong={}) for worker in workers}


def test_of_several_nodes_with_wrong_sums_each_is_wrong_the_second_time() -> None:
    run = Job().begin().machine._run
    assert not _suspected_twice(run, denied(Held.SUM, 0, 2))
    assert run.suspects == {0, 1}
    assert _suspected_twice(run, denied(Held.SUM, 2, 4)).keys() == {2}
    assert run.suspects == {0, 1, 2}


def test_what_differs_is_void_in_the_journal_before_anything_else() -> None:
    """So that a successor commits nothing of it either."""
    run = Job().begin().machine._run
    told = {0: {WorkerId(worker): Digest(1, 2 + (worker > 2), 1) for worker in range(6)}}
    found = difference(told)
    assert found is not None
    assert isinstance(_undo(run, found, told)[0], JournalVoid)


@pytest.mark.parametrize(
    ("held", "workers"), [(Held.SUM, (0, 1)), (Held.REPLICA, (0, 2)), (Held.COMPUTATION, (0, 2))], ids=str
)
def test_one_node_or_what_is_not_copied_from_the_next_is_wrong_at_once(held: Held, workers: tuple[int, ...]) -> None:
    run = Job().begin().machine._run
    wrong = denied(held, *workers)
    assert _suspected_twice(run, wrong) == wrong
    assert not run.suspects
