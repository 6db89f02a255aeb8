"""Redundant compute: when a worker runs the layers that it shadows, beside its own work (Bamboo, section 5).

Which layers these are, `planaria.plan.program.routes` says; here is only where their forwards and backwards go in a
worker's left. Whatever the order, nobody waits for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planaria.plan.plan import Redundancy, WorkerId
from planaria.plan.program.hops import RouteHop
from planaria.plan.program.units import Phase, Unit


def with_shadows(
    own: Sequence[Unit],
    shadowed: Sequence[tuple[RouteHop, int]],
    by: WorkerId,
    kind: Redundancy,
    place: int,
    num_hops: int,
) -> Iterator[Unit]:
    """Yields a worker's units of a step in order, with the forwards (and backwards) of what it shadows.

    A pipeline has bubbles where a worker waits for its successor's first gradient, before every later one if its
    successor is slower, and at the end, until the workers below it are done. So the forward of microbatch k - 1 comes
    after the own forward of k, before the next gradient is waited for; those of the first microbatches before the first
    gradient; and of the last ones as many as the worker has before it at the very end. The last worker, which runs the
    first one's layers, begins with some: it waits for its first activation for as long.

    A shadow's backward needs what the hop above it sends, which is there before the own backward of the same microbatch
    can begin; the last worker, for which it comes last, is that much behind.

    Args:
        own: the worker's own units.
        shadowed: hops and microbatches, in the order in which they set out.
        by: the worker that shadows.
        kind: whether shadows run forwards alone, or all of the step.
        place: its own in its pipeline.
        num_hops: the pipeline's number of hops.
    """
    left = _Shadowed(shadowed, by, kind)
    is_last = place == num_hops - 1
    late = 0 if kind.runs_backwards else min(place, len(shadowed))
    yield from left.forwards(forwards_at_first(len(shadowed), late, place, num_hops))
    forwards = backwards = 0
    for unit in own:
        if unit.phase is Phase.INPUT_GRADIENT:
            yield from left.forwards(min(forwards_before(forwards, backwards, is_last=is_last), len(shadowed) - late))
            if kind.runs_backwards and not is_last:
                yield from left.backward_of(unit.microbatch)
            backwards += 1
        yield unit
        if unit.phase is Phase.FORWARD:
            forwards += 1
        elif unit.phase is Phase.INPUT_GRADIENT and kind.runs_backwards and is_last and backwards >= num_hops:
            yield from left.next_backward()
    yield from left.rest()


def forwards_at_first(number: int, late: int, place: int, num_hops: int) -> int:
    """Returns how many shadow forwards run before anything else, if `late` of them run after all: see
    `with_shadows`."""
    return min(place, number - late) if place == num_hops - 1 else 0


def forwards_before(forwards: int, backwards: int, *, is_last: bool) -> int:
    """Returns how many shadow forwards run before an own backward, after so many own units: see `with_shadows`."""
    ahead = forwards if is_last or not backwards else forwards - 1
    return max(ahead, backwards + 1)


class _Shadowed:
    """Shadowed work that is still to be listed."""

    def __init__(self, shadowed: Sequence[tuple[RouteHop, int]], by: WorkerId, kind: Redundancy) -> None:
        self._shadowed = shadowed
        self._by = by
        self._kind = kind
        self._at = 0
        self._backwards = list(range(len(shadowed))) if kind.runs_backwards else []

    def forwards(self, until: int) -> Iterator[Unit]:
        """Yields the forwards of the first `until` microbatches that are not listed yet."""
        while self._at < min(until, len(self._shadowed)):
            hop, microbatch = self._shadowed[self._at]
            self._at += 1
            if is_worth(hop):
                yield Unit(Phase.SHADOW_FORWARD, hop, microbatch, self._by)

    def backward_of(self, microbatch: int) -> Iterator[Unit]:
        """Yields this microbatch's backward, with its forward if need be."""
        for at in self._backwards:
            if self._shadowed[at][1] == microbatch:
                yield from self._backward(at)
                return

    def next_backward(self) -> Iterator[Unit]:
        """Yields the backward of the first microbatch for which it is not listed yet."""
        if self._backwards:
            yield from self._backward(self._backwards[0])

    def rest(self) -> Iterator[Unit]:
        """Yields all shadowed work that is left."""
        yield from self.forwards(len(self._shadowed))
        while self._backwards:
            yield from self._backward(self._backwards[0])

    def _backward(self, at: int) -> Iterator[Unit]:
        yield from self.forwards(at + 1)
        self._backwards.remove(at)
        hop, microbatch = self._shadowed[at]
        if is_worth(hop):
            yield Unit(Phase.SHADOW_BACKWARD, hop, microbatch, self._by)


def is_worth(hop: RouteHop) -> bool:
    """Returns whether a shadow runs the hop: something of it counts, so its loss would have to be recomputed."""
    return bool(hop.counted) and not hop.is_done
