"""Layer cuts: which backwards go layer by layer, so that the sums of the upper layers can start early.

Which layer a piece of a backward covers depends, beside the route, on the microbatches born in the same generation that
the worker counts: it keeps or drops all of those together.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from planaria.plan.program.hops import RouteHop
from planaria.plan.program.units import Phase, Unit
from planaria.plan.schedule_kind import ScheduleKind


@dataclass(frozen=True, slots=True)
class CutOrder:
    """A worker's units of work in order, and which of them are cut.

    Attributes:
        units: all units of the worker.
        end: of those before the weights' gradients that are left when all else is done: these go layer by layer.
        own_end: of its own; after them comes only what it shadows.
        cut: born, microbatch and phase of the units whose gradients of weights are computed layer by layer.
    """

    units: Sequence[Unit]
    end: int
    own_end: int
    cut: Set[tuple[int, int, Phase]]

    @classmethod
    def of(cls, units: Sequence[Unit], kind: ScheduleKind) -> CutOrder:
        """Returns a worker's units with the cut ones marked."""
        own_end = len(units)
        while own_end > 0 and units[own_end - 1].phase.is_shadow:
            own_end -= 1
        end = own_end
        while end > 0 and units[end - 1].phase is Phase.WEIGHT_GRADIENTS:
            end -= 1
        return cls(units, end, own_end, _to_cut(units, kind))

    def is_cut(self, unit: Unit) -> bool:
        """Returns whether the unit goes layer by layer."""
        return (unit.hop.born, unit.microbatch, unit.phase) in self.cut


def _to_cut(units: Sequence[Unit], kind: ScheduleKind) -> set[tuple[int, int, Phase]]:
    """Returns born, microbatch and phase of the units that are cut into layers.

    They are the last to count one of their layers; and of weight gradients also those of the microbatches that may
    come after all other work, because they lag behind. "Last" means the highest microbatch of those born in one
    generation, not of the whole plan: routes born later must not change how an earlier one's backward is cut,
    because it may be half done.
    """
    found: dict[tuple[int, Phase], list[int]] = {}
    hops: dict[int, RouteHop] = {}
    for phase, hop, microbatch, _ in units:
        if phase is Phase.INPUT_GRADIENT or phase is Phase.WEIGHT_GRADIENTS:
            number = id(hop)
            if (number, phase) in found:
                found[number, phase].append(microbatch)
            elif hop.counted:
                hops[number] = hop
                found[number, phase] = [microbatch]
    counting: dict[tuple[int, int, Phase], list[tuple[int, int]]] = {}
    for (number, phase), of_hop in found.items():
        hop = hops[number]
        behind = kind.weights_behind(hop.place)
        top = sorted(of_hop)[-1 - behind :]
        for layer in hop.counted:
            counting.setdefault((hop.born, layer, phase), []).extend((microbatch, behind) for microbatch in top)
    cut: set[tuple[int, int, Phase]] = set()
    for (born, _, phase), travellers in counting.items():
        for turn, (microbatch, behind) in enumerate(sorted(travellers, reverse=True)):
            if turn == 0 or (phase is Phase.WEIGHT_GRADIENTS and turn <= behind):
                cut.add((born, microbatch, phase))
    return cut
