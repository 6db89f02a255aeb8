"""Orders: in which order a worker of a pipeline does its units, by the schedule's kind.

1F1B, GPipe and their eager and zero-bubble kin are one order that is written down here alone: they differ in how many
forwards go ahead of the backwards, and backwards ahead of the weight gradients (`planaria.plan.schedule_kind`). Routes
that cross have `planaria.plan.program.list_schedule`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planaria.plan.program.hops import RouteHop
from planaria.plan.program.units import Phase, Unit
from planaria.plan.schedule_kind import ScheduleKind


def pipeline_order(
    passing: Sequence[tuple[RouteHop, int]], place: int, num_hops: int, kind: ScheduleKind
) -> Iterator[Unit]:
    """Yields the units of the worker at that place of a pipeline of so many hops.

    Where a microbatch has no backward here its turn stays empty: what is left keeps the textbook's global order.
    (Weight gradients need and give nothing elsewhere, so they fit into a global order anywhere.)

    Args:
        passing: hops and microbatches, in the order in which they set out.
        place: the worker's, from 0.
        num_hops: the pipeline's number of hops.
        kind: the kind of schedule.
    """
    ahead = kind.forwards_ahead(num_hops - 1 - place, len(passing))
    for phase, turn in turns(len(passing), ahead, kind.weights_behind(place)):
        hop, microbatch = passing[turn]
        if phase is Phase.FORWARD or (hop.keeps if phase is Phase.INPUT_GRADIENT else hop.has_weight):
            yield Unit(phase, hop, microbatch)


def turns(number: int, ahead: int, behind: int) -> Iterator[tuple[Phase, int]]:
    """Yields a worker's units in order, as phase and number of the microbatch, for `number` microbatches.

    A warm-up of `ahead` forwards, then a forward and a backward in turn, then the other backwards; a microbatch's
    weight gradients, where they are apart, come after the backward of the microbatch `behind` later.
    """
    for turn in range(ahead):
        yield Phase.FORWARD, turn
    for turn in range(number):
        if ahead + turn < number:
            yield Phase.FORWARD, ahead + turn
        yield Phase.INPUT_GRADIENT, turn
        if turn >= behind:
            yield Phase.WEIGHT_GRADIENTS, turn - behind
    for turn in range(max(0, number - behind), number):
        yield Phase.WEIGHT_GRADIENTS, turn
