"""New pipeline sizes after a change of nodes, in numbers of nodes alone (Oobleck, section 5.1).

Nodes in no pipeline (spares: they came, or were left over) are used first: pipelines below the smallest template are
filled up to it, then those that lost nodes up to what they had. Whatever is left then makes new pipelines of the
smallest size, and the rest of it makes the smallest pipelines larger.
"""

from __future__ import annotations

import bisect
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
    regrouping = _Regrouping(result, situation.smallest)
    while (short := regrouping.short()) is not None:
        if not regrouping.borrow(short):
            return None
    _add_replicas(situation, result, spares)
    return _complete(situation, result, spares)


def merge_sizes(situation: Situation) -> list[int] | None:
    """Returns sizes as `simple_sizes` does, where pipelines too small for a template merge into the smallest others."""
    result, spares = _filled(situation)
    regrouping = _Regrouping(result, situation.smallest)
    while (short := regrouping.short()) is not None:
        if not regrouping.merge(short):
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
    regrouping = _Regrouping(result, situation.smallest)
    while (short := regrouping.short()) is not None:
        if regrouping.borrow(short):
            how = How.BORROW if how is How.SIMPLE else how
        elif regrouping.merge(short):
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
    """Returns the sizes with every spare used, if they are feasible then: for more pipelines, then to make the smallest
    larger."""
    more = min(spares[0] // situation.smallest, situation.most - sum(size > 0 for size in result))
    for _ in range(more):
        result.append(0)
        _give(result, len(result) - 1, situation.smallest, spares)
    growing = [(size, at) for at, size in enumerate(result) if size]
    heapq.heapify(growing)
    while spares[0]:
        if not growing:
            return None
        size, at = heapq.heappop(growing)
        larger = bisect.bisect_right(situation.sizes, size)
        if larger < len(situation.sizes) and situation.sizes[larger] - size <= spares[0]:  # spares only become fewer
            _give(result, at, situation.sizes[larger] - size, spares)
            heapq.heappush(growing, (result[at], at))
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
        _Regrouping(result, smallest).borrow(len(result) - 1)
        borrowed = True
    return borrowed


def _surplus(sizes: list[int], smallest: int) -> int:
    return sum(max(0, size - smallest) for size in sizes)


class _Regrouping:
    """Gives pipelines that are too small nodes of the largest, or merges them into the smallest other one.

    Quick for thousands of pipelines: of each heap, what no longer is so is passed over when it comes up.

    Args:
        sizes: of the pipelines, which it changes; nobody else does meanwhile.
        smallest: that a pipeline may have.
    """

    def __init__(self, sizes: list[int], smallest: int) -> None:
        self._surplus = _surplus(sizes, smallest)
        self._smallest = smallest
        self._sizes = sizes
        self._fewest = [(size, at) for at, size in enumerate(sizes) if size]
        self._most = [(-size, at) for size, at in self._fewest]
        heapq.heapify(self._fewest)
        heapq.heapify(self._most)
        self._from = 0

    def short(self) -> int | None:
        """Returns the first pipeline that is too small. None: there is none. What was not too small never will be."""
        sizes, smallest = self._sizes, self._smallest
        self._from = next((at for at in range(self._from, len(sizes)) if 0 < sizes[at] < smallest), len(sizes))
        return self._from if self._from < len(sizes) else None

    def borrow(self, short: int) -> bool:
        """Takes nodes of the largest pipelines, one by one, until this one has the smallest size; returns False where
        they have too few above it."""
        lacking = self._smallest - self._sizes[short]
        if self._surplus < lacking:
            return False
        for _ in range(lacking):
            while self._sizes[self._most[0][1]] != -self._most[0][0]:
                heapq.heappop(self._most)
            lender = self._most[0][1]
            self._set(lender, self._sizes[lender] - 1)
        self._set(short, self._smallest)
        return True

    def merge(self, short: int) -> bool:
        """Merges a pipeline into the smallest other one; returns False where there is no other."""
        while self._fewest:
            size, at = heapq.heappop(self._fewest)
            if self._sizes[at] == size and at != short:
                self._set(at, size + self._sizes[short])
                self._set(short, 0)
                return True
        return False

    def _set(self, at: int, size: int) -> None:
        self._surplus += max(0, size - self._smallest) - max(0, self._sizes[at] - self._smallest)
        self._sizes[at] = size
        if size:
            heapq.heappush(self._fewest, (size, at))
            heapq.heappush(self._most, (-size, at))
