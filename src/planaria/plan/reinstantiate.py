"""New pipeline sizes after a change of nodes, in numbers of nodes alone (Oobleck, section 5.1)."""

from __future__ import annotations

import enum
from collections.abc import Sequence


class How(enum.StrEnum):
    """How pipelines were made again.

    The first three are Oobleck's, the last is used when they do not apply: nodes came, or no template has the
    size.
    """

    SIMPLE = "simple"
    BORROW = "borrow"
    MERGE = "merge"
    INSTANTIATE = "instantiate"


def reinstantiate(
    alive: Sequence[int], num_spares: int, sizes: Sequence[int], num_replicas: int
) -> tuple[list[int], How] | None:
    """The number of nodes of each pipeline after a loss.

    A pipeline takes the template of its remaining nodes if there is one; else it borrows nodes from the
    largest pipelines until it has n0; else it is merged into another. A pipeline without a node left is
    dropped, unless the replicas would be too few. Spare nodes are used before any is borrowed.

    Args:
        alive: for each pipeline of the plan, its live nodes.
        num_spares: live nodes in no pipeline.
        sizes: of the templates, ascending.
        num_replicas: f + 1; the nodes suffice for so many of the smallest template.

    Returns:
        Sizes (0: dropped; new pipelines at the end) and how; None where a full instantiation is needed.
    """
    smallest = sizes[0]
    result = list(alive)
    how = How.SIMPLE
    for at, size in enumerate(result):
        if 0 < size < smallest:
            taken = min(smallest - size, num_spares)
            result[at] += taken
            num_spares -= taken
    while (short := _short(result, smallest)) is not None:
        if _surplus(result, smallest) >= smallest - result[short]:
            _borrow(result, short, smallest)
            how = How.BORROW if how is How.SIMPLE else how
        else:
            partner = _partner(result, short)
            result[partner] += result[short]
            result[short] = 0
            how = How.MERGE
    while sum(size > 0 for size in result) < num_replicas:
        if _surplus(result, smallest) + num_spares < smallest:
            return None
        taken = min(smallest, num_spares)
        num_spares -= taken
        result.append(taken)
        _borrow(result, len(result) - 1, smallest)
        how = How.BORROW if how is How.SIMPLE else how
    if num_spares or any(size and size not in sizes for size in result):
        return None
    return result, how


def _short(sizes: list[int], smallest: int) -> int | None:
    return next((at for at, size in enumerate(sizes) if 0 < size < smallest), None)


def _surplus(sizes: list[int], smallest: int) -> int:
    return sum(max(0, size - smallest) for size in sizes)


def _borrow(sizes: list[int], borrower: int, smallest: int) -> None:
    while sizes[borrower] < smallest:
        lender = max((at for at in range(len(sizes)) if at != borrower), key=lambda at: (sizes[at], -at))
        sizes[lender] -= 1
        sizes[borrower] += 1


def _partner(sizes: list[int], short: int) -> int:
    """The smallest other pipeline."""
    others = [at for at, size in enumerate(sizes) if size and at != short]
    return min(others, key=lambda at: (sizes[at], at))
