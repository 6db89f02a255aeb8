"""Stand-ins: which worker computes another one's layers beside its own, and when (Bamboo, section 5).

A worker that holds its successor's layers as a shadow runs their forwards on what it sends there anyway; the last one
loads the first one's inputs itself. Pipelines of one stage stand in a ring: each worker owns all layers, and runs the
forwards of the next pipeline's microbatches (appendix B, "over-batching").

Here is only where these forwards and backwards go in a worker's order. Whatever the order, nobody waits for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planaria.plan.plan import Plan, Redundancy, Stage, WorkerId
from planaria.plan.work import Leg, Phase, Unit


def stand_ins(plan: Plan, hops: Sequence[Stage]) -> tuple[WorkerId | None, ...]:
    """Of each hop of a way that nobody else takes, the worker before it if that shadows all of it; the last one is
    before the first. None where nobody does, where it is on the same node, and for a way of one hop."""
    if plan.redundancy is None or len(hops) < 2:
        return (None,) * len(hops)
    held: dict[WorkerId, set[int]] = {}
    for shadow in plan.shadows:
        held.setdefault(shadow.worker, set()).update(shadow.layers)
    found: list[WorkerId | None] = []
    for place, hop in enumerate(hops):
        worker = hops[place - 1].worker
        elsewhere = plan.node_of(worker) != plan.node_of(hop.worker)
        found.append(worker if elsewhere and held.get(worker, set()).issuperset(hop.layers) else None)
    return tuple(found)


def ring_of_whole(plan: Plan, workers: Sequence[WorkerId]) -> dict[WorkerId, WorkerId]:
    """Of workers that are a pipeline each, in order: whose microbatches each one runs once more: the next one's.

    None where they are fewer than two, or all on one node.
    """
    if plan.redundancy is None or len(workers) < 2:
        return {}
    pairs = zip(workers, [*workers[1:], workers[0]], strict=True)
    return {worker: other for worker, other in pairs if plan.node_of(worker) != plan.node_of(other)}


def with_shadows(
    own: Sequence[Unit],
    shadowed: Sequence[tuple[Leg, int]],
    by: WorkerId,
    kind: Redundancy,
    place: int,
    num_hops: int,
) -> Iterator[Unit]:
    """A worker's order of a step, with the forwards (and backwards) of what it shadows.

    A pipeline has bubbles where a worker waits for its successor's first gradient, before every later one if its
    successor is slower, and at the end, until the workers below it are done. So the forward of microbatch k - 1 comes
    after the own forward of k, before the next gradient is waited for; those of the first microbatches before the first
    gradient; and of the last ones as many as the worker has before it at the very end. The last worker, which runs the
    first one's layers, begins with some: it waits for its first activation for as long.

    A shadow's backward needs what the hop above it sends, which is there before the own backward of the same microbatch
    can begin; the last worker, for which it comes last, is that much behind.

    Args:
        own: its units.
        shadowed: legs and microbatches, in the order in which they set out.
        by: the worker.
        kind: what is eager.
        place: its own in its pipeline.
        num_hops: of the pipeline.
    """
    order = _Order(shadowed, by, kind)
    is_last = place == num_hops - 1
    late = 0 if kind.runs_backwards else min(place, len(shadowed))
    yield from order.forwards(forwards_at_first(len(shadowed), late, place, num_hops))
    forwards = backwards = 0
    for unit in own:
        if unit.phase is Phase.INPUT_GRADIENT:
            yield from order.forwards(min(forwards_before(forwards, backwards, is_last=is_last), len(shadowed) - late))
            if kind.runs_backwards and not is_last:
                yield from order.backward_of(unit.microbatch)
            backwards += 1
        yield unit
        if unit.phase is Phase.FORWARD:
            forwards += 1
        elif unit.phase is Phase.INPUT_GRADIENT and kind.runs_backwards and is_last and backwards >= num_hops:
            yield from order.next_backward()
    yield from order.rest()


def forwards_at_first(number: int, late: int, place: int, num_hops: int) -> int:
    """Of so many shadow's forwards, those that come before anything else, if so many come after all; see
    `with_shadows`."""
    return min(place, number - late) if place == num_hops - 1 else 0


def forwards_before(forwards: int, backwards: int, *, is_last: bool) -> int:
    """Of a shadow's forwards, those that come before an own backward, after so many own forwards and backwards: see
    `with_shadows`."""
    ahead = forwards if is_last or not backwards else forwards - 1
    return max(ahead, backwards + 1)


class _Order:
    """What of the shadowed is still to be listed."""

    def __init__(self, shadowed: Sequence[tuple[Leg, int]], by: WorkerId, kind: Redundancy) -> None:
        self._shadowed = shadowed
        self._by = by
        self._kind = kind
        self._at = 0
        self._backwards = list(range(len(shadowed))) if kind.runs_backwards else []

    def forwards(self, until: int) -> Iterator[Unit]:
        """Those of the first `until` microbatches that are not listed yet."""
        while self._at < min(until, len(self._shadowed)):
            leg, microbatch = self._shadowed[self._at]
            self._at += 1
            if is_worth(leg):
                yield Unit(Phase.SHADOW_FORWARD, leg, microbatch, self._by)

    def backward_of(self, microbatch: int) -> Iterator[Unit]:
        """Of this microbatch, with its forward if need be."""
        for at in self._backwards:
            if self._shadowed[at][1] == microbatch:
                yield from self._backward(at)
                return

    def next_backward(self) -> Iterator[Unit]:
        """Of the first microbatch whose is not listed yet."""
        if self._backwards:
            yield from self._backward(self._backwards[0])

    def rest(self) -> Iterator[Unit]:
        """All that is left."""
        yield from self.forwards(len(self._shadowed))
        while self._backwards:
            yield from self._backward(self._backwards[0])

    def _backward(self, at: int) -> Iterator[Unit]:
        yield from self.forwards(at + 1)
        self._backwards.remove(at)
        leg, microbatch = self._shadowed[at]
        if is_worth(leg):
            yield Unit(Phase.SHADOW_BACKWARD, leg, microbatch, self._by)


def is_worth(leg: Leg) -> bool:
    """Whether a shadow runs it: something of it counts, so its loss would have to be made good."""
    return bool(leg.counted) and not leg.is_done
