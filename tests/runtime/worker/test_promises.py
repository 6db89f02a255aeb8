"""The promises on trial: what a history of commits may be."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from planaria.protocol.messages.records import Restored
from planaria.protocol.messages.to_worker import Commit
from tests.runtime.worker.promises import check_that_commits_agree

Told = tuple[int, float, tuple[int, ...]]
"""Of a commit: step, clip factor, what is left out."""

BACK = Restored(from_step=3, to_step=1, reason="")


def history(*commits: Told) -> list[Commit]:
    return [
        Commit(generation=1, step=step, clip_factor=factor, exponents=(), hold=False, dropped=dropped)
        for step, factor, dropped in commits
    ]


@pytest.mark.parametrize(
    "again",
    [
        [(2, 0.5, ()), (3, 0.25, (7,))],
        [(2, 0.5, ()), (3, 0.3, (8,)), (4, 0.1, ())],
        [(2, 0.6, (8,)), (3, 0.3, (7,)), (4, 0.1, ())],
        [(2, 0.6, (8,)), (3, 0.3, ()), (3, 0.3, ())],
    ],
)
def test_after_other_samples_are_left_out_a_step_may_be_another(again: list[Told]) -> None:
    check_that_commits_agree(history((1, 1.0, ()), (2, 0.5, ()), (3, 0.25, (7,)), *again), [BACK])


@pytest.mark.parametrize(
    ("again", "step", "restored"),
    [
        ([(2, 0.6, ()), (3, 0.3, (8,))], 2, [BACK]),
        ([(2, 0.6, (8,)), (3, 0.3, (7,)), (3, 0.4, (7,))], 3, [BACK]),
        ([(3, 0.3, (8,))], 3, []),
        ([(1, 0.9, (8,))], 1, [BACK]),
    ],
)
def test_before_them_and_with_the_same_ones_it_is_the_same(
    again: list[Told], step: int, restored: Sequence[Restored]
) -> None:
    commits = history((1, 1.0, ()), (2, 0.5, ()), (3, 0.25, (7,)), *again)
    with pytest.raises(AssertionError, match=f"step {step} is committed in two ways"):
        check_that_commits_agree(commits, restored)
