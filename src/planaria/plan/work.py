"""Units of work: a forward or backward of one microbatch on one hop, with the messages that belong to it."""

from __future__ import annotations

from dataclasses import dataclass

from planaria.plan.plan import Route, Stage, WorkerId
from planaria.plan.program import Instruction, Op


def merge_hops(hops: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """The same way with neighbouring hops on one worker made into one."""
    merged: list[Stage] = []
    for hop in hops:
        if merged and merged[-1].worker == hop.worker and merged[-1].num_devices == hop.num_devices:
            hop = Stage(
                worker=hop.worker,
                first_layer=merged.pop().first_layer,
                end_layer=hop.end_layer,
                num_devices=hop.num_devices,
            )
        merged.append(hop)
    return tuple(merged)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A forward or backward of one microbatch on one hop of its (merged) route.

    Attributes:
        is_forward: or a backward.
        worker: who does it.
        place: of the hop in its route.
        microbatch: whose.
        born: the route's.
        first_layer: lowest layer run.
        end_layer: one above the highest.
        counted: of a backward, the layers whose gradients are accumulated.
        keeps: of a forward, whether a backward follows here.
        loads: of a forward, whether it needs the microbatch's data (inputs or targets).
        below: the worker of the previous hop, where a message goes to it or comes from it.
        above: the worker of the next hop, likewise.
    """

    is_forward: bool
    worker: WorkerId
    place: int
    microbatch: int
    born: int
    first_layer: int
    end_layer: int
    counted: tuple[int, ...] = ()
    keeps: bool = False
    loads: bool = False
    below: WorkerId | None = None
    above: WorkerId | None = None

    @classmethod
    def forward(cls, route: Route, microbatch: int, hops: tuple[Stage, ...], place: int) -> Unit:
        """Of the hop `hops[place]`."""
        hop = hops[place]
        return cls(
            is_forward=True,
            worker=hop.worker,
            place=place,
            microbatch=microbatch,
            born=route.born,
            first_layer=hop.first_layer,
            end_layer=hop.end_layer,
            keeps=hop.end_layer > min(route.counted),
            loads=place in (0, len(hops) - 1),
            below=hops[place - 1].worker if place > 0 else None,
            above=hops[place + 1].worker if place + 1 < len(hops) else None,
        )

    @classmethod
    def backward(cls, route: Route, microbatch: int, hops: tuple[Stage, ...], place: int) -> Unit | None:
        """Of the hop `hops[place]`; None where all layers that the route counts are above it."""
        hop, low = hops[place], min(route.counted)
        if hop.end_layer <= low:
            return None
        return cls(
            is_forward=False,
            worker=hop.worker,
            place=place,
            microbatch=microbatch,
            born=route.born,
            first_layer=max(hop.first_layer, low),
            end_layer=hop.end_layer,
            counted=tuple(layer for layer in hop.layers if layer in route.counted),
            below=hops[place - 1].worker if hop.first_layer > low else None,
            above=hops[place + 1].worker if place + 1 < len(hops) else None,
        )

    def instructions(self, *, by_layer: bool = False) -> tuple[Instruction, ...]:
        """What the worker does for it; `by_layer`: a backward cut into layers, from the top down."""
        return self._forward() if self.is_forward else self._backward(by_layer)

    def _forward(self) -> tuple[Instruction, ...]:
        out: list[Instruction] = []
        if self.loads:
            out.append(Instruction(op=Op.LOAD, microbatch=self.microbatch, born=self.born))
        if self.below is not None:
            out.append(self._message(Op.RECV_ACTIVATION, self.first_layer, self.below))
        out.append(
            Instruction(
                op=Op.FORWARD,
                microbatch=self.microbatch,
                born=self.born,
                first_layer=self.first_layer,
                end_layer=self.end_layer,
                keeps=self.keeps,
            )
        )
        if self.above is not None:
            out.append(self._message(Op.SEND_ACTIVATION, self.end_layer, self.above))
        return tuple(out)

    def _backward(self, by_layer: bool) -> tuple[Instruction, ...]:
        out: list[Instruction] = []
        if self.above is not None:
            out.append(self._message(Op.RECV_GRADIENT, self.end_layer, self.above))
        ranges = [(self.first_layer, self.end_layer)]
        if by_layer:
            ranges = [(layer, layer + 1) for layer in reversed(range(self.first_layer, self.end_layer))]
        out.extend(
            Instruction(
                op=Op.BACKWARD,
                microbatch=self.microbatch,
                born=self.born,
                first_layer=first,
                end_layer=end,
                counted=tuple(layer for layer in self.counted if first <= layer < end),
            )
            for first, end in ranges
        )
        if self.below is not None:
            out.append(self._message(Op.SEND_GRADIENT, self.first_layer, self.below))
        return tuple(out)

    def _message(self, op: Op, boundary: int, peer: WorkerId) -> Instruction:
        return Instruction(op=op, microbatch=self.microbatch, born=self.born, first_layer=boundary, peer=peer)
