"""New pipeline sizes after a change of nodes, in numbers of nodes alone (Oobleck, section 5.1).

Nodes in no pipeline (spares: they came, or were left over) are used first: pipelines below the smallest template are
filled up to it, then those that lost nodes up to what they had. Whatever is left then makes new pipelines of the
smallest size, and the rest of it makes the smallest pipelines larger.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Sequence
from dataclasses import dataclass


class How(enum.StrEnum):
    """Ways in which pipelines were made again.

    The first three are Oobleck's; the last is the full search, for where they do not apply (more nodes came than were
    lost, or no template has the size) or where it is asked for.
    """

    SIMPLE = "simple"
    BORROW = "borrow"
    MERGE = "merge"
    INSTANTIATE = "instantiate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What is left of a plan's pipelines, in numbers of nodes.

    Attributes:
        before: for each pipeline, the nodes that it had.
        alive: for each pipeline, those of them that live.
        num_spares: live nodes in no pipeline.
        sizes: of the templates, ascending.
        num_replicas: f + 1; the nodes suffice for so many of the smallest template.
        most: pipelines that the batch allows.
    """

    before: Sequence[int]
    alive: Sequence[int]
    num_spares: int
    sizes: Sequence[int]
    num_replicas: int
    most: int

    @property
    def smallest(self) -> int:
        return self.sizes[0]


def simple_sizes(situation: Situation) -> list[int] | None:
    """Returns sizes where each pipeline takes the template of its remaining nodes; one without any is dropped.

    Returns:
        The number of nodes of each pipeline (0: dropped; new ones at the end); None where some pipeline has no
        template, replicas are too few, or a node would be left over.
    """
    result, spares = _filled(situation)
    return _complete(situation, result, spares)


def borrow_sizes(situation: Situation) -> list[int] | None:
    """Returns sizes as `simple_sizes` does, where pipelines too small for a template borrow nodes from the largest.

    Returns:
        As `simple_sizes`; None also where the others have too few nodes above the smallest template to lend.
    """
    result, spares = _filled(situation)
    for at, size in enumerate(result):
        if 0 < size < situation.smallest:
            if _surplus(result, situation.smallest) < situation.smallest - size:
                return None
            _borrow(result, at, situation.smallest)
    _add_replicas(situation, result, spares)
    return _complete(situation, result, spares)


def merge_sizes(situation: Situation) -> list[int] | None:
    """Returns sizes as `simple_sizes` does, where pipelines too small for a template merge into the smallest others."""
    result, spares = _filled(situation)
    merging = _Merging(result, situation.smallest)
    while (short := merging.short()) is not None:
        if not merging.merge(short):
            return None
    return _complete(situation, result, spares)


def reinstantiate(situation: Situation) -> tuple[list[int], How] | None:
    """Returns the sizes by the first of simple, borrow and merge that applies, for each pipeline.

    Returns:
        Sizes as `simple_sizes`, and the furthest step that was needed. None where none of them gives a template to each
        pipeline, or where more spares are left than were nodes lost: then a full search may do better.
    """
    result, spares = _filled(situation)
    how = How.SIMPLE
    merging = _Merging(result, situation.smallest)
    while (short := merging.short()) is not None:
        if merging.surplus >= situation.smallest - result[short]:
            _borrow(result, short, situation.smallest)
            how = How.BORROW if how is How.SIMPLE else how
            merging = _Merging(result, situation.smallest)
        elif merging.merge(short):
            how = How.MERGE
        else:
            return None
    if _add_replicas(situation, result, spares):
        how = How.BORROW if how is How.SIMPLE else how
    if spares[0] or not _is_feasible(situation, result):
        return None
    return result, how


def _filled(situation: Situation) -> tuple[list[int], list[int]]:
    """Returns the live nodes of each pipeline with spares filled in, and the spares left (a list of one number)."""
    result = list(situation.alive)
    spares = [situation.num_spares]
    for at, size in enumerate(result):
        if 0 < size < situation.smallest:
            _give(result, at, situation.smallest - size, spares)
    for at, size in enumerate(result):
        if situation.smallest <= size < situation.before[at]:
            fitting = [s for s in situation.sizes if size < s <= min(situation.before[at], size + spares[0])]
            _give(result, at, max(fitting, default=size) - size, spares)
    for at, size in enumerate(result):
        if not size and situation.before[at] and spares[0] >= situation.smallest:
            fitting = [s for s in situation.sizes if s <= min(situation.before[at], spares[0])]
            _give(result, at, max(fitting, default=0), spares)
    return result, spares


def _give(result: list[int], at: int, wanted: int, spares: list[int]) -> None:
    given = min(wanted, spares[0])
    result[at] += given
    spares[0] -= given


def _complete(situation: Situation, result: list[int], spares: list[int]) -> list[int] | None:
    """Returns the sizes with every spare used, if they are feasible then."""
    while spares[0] >= situation.smallest and sum(size > 0 for size in result) < situation.most:
        result.append(situation.smallest)
        spares[0] -= situation.smallest
    while spares[0]:
        larger = [
            (size, at, next((s for s in situation.sizes if s > size), 0)) for at, size in enumerate(result) if size
        ]
        growing = [(at, wanted - size) for size, at, wanted in sorted(larger) if 0 < wanted - size <= spares[0]]
        if not growing:
            return None
        _give(result, *growing[0], spares)
    return result if _is_feasible(situation, result) else None


def _is_feasible(situation: Situation, result: Sequence[int]) -> bool:
    enough = situation.num_replicas <= sum(size > 0 for size in result) <= situation.most
    return enough and all(size in situation.sizes for size in result if size)


def _add_replicas(situation: Situation, result: list[int], spares: list[int]) -> bool:
    """Adds pipelines of the smallest size, up to f + 1, from spares, then from the largest; returns whether it did."""
    smallest, borrowed = situation.smallest, False
    while sum(size > 0 for size in result) < situation.num_replicas:
        if _surplus(result, smallest) + spares[0] < smallest:
            break
        result.append(0)
        _give(result, len(result) - 1, smallest, spares)
        _borrow(result, len(result) - 1, smallest)
        borrowed = True
    return borrowed


def _surplus(sizes: list[int], smallest: int) -> int:
    return sum(max(0, size - smallest) for size in sizes)


def _borrow(sizes: list[int], borrower: int, smallest: int) -> None:
    while sizes[borrower] < smallest:
        lender = max((at for at in range(len(sizes)) if at != borrower), key=lambda at: (sizes[at], -at))
        sizes[lender] -= 1
        sizes[borrower] += 1


class _Merging:
    """Merges pipelines that are too small, one after another, into the smallest other one: linear in thousands of them.

    Args:
        sizes: of the pipelines, which it changes; nobody else does meanwhile.
        smallest: that a pipeline may have.

    Attributes:
        surplus: nodes that pipelines have above the smallest size.
    """

    def __init__(self, sizes: list[int], smallest: int) -> None:
        self.surplus = _surplus(sizes, smallest)
        self._smallest = smallest
        self._sizes = sizes
        self._by_size = [(size, at) for at, size in enumerate(sizes) if size]
        heapq.heapify(self._by_size)
        self._from = 0

    def short(self) -> int | None:
        """Returns the first pipeline that is too small. None: there is none. What was not too small never will be."""
        sizes, smallest = self._sizes, self._smallest
        self._from = next((at for at in range(self._from, len(sizes)) if 0 < sizes[at] < smallest), len(sizes))
        return self._from if self._from < len(sizes) else None

    def merge(self, short: int) -> bool:
        """Merges a pipeline into the smallest other one; returns False where there is no other."""
        sizes, by_size = self._sizes, self._by_size
        while by_size:
            size, at = heapq.heappop(by_size)
            if sizes[at] == size and at != short:
                sizes[at] += sizes[short]
                sizes[short] = 0
                self.surplus += max(0, sizes[at] - self._smallest) - max(0, size - self._smallest)
                heapq.heappush(by_size, (sizes[at], at))
                return True
        return False
