"""Order flow: workers' units of work in virtual time, without their programs.

What `planaria.estimate.flow` makes of the programs, to the last bit and faster: the units of one phase of a leg differ
in the microbatch alone, so their instructions are looked at once. Owns nothing of the order of work, which is that of
`planaria.plan.program`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from planaria.estimate.durations import Durations
from planaria.estimate.flow import Beat, advance_all
from planaria.estimate.pipeline_flow import PipelineFlow, WorkerFlow
from planaria.plan.plan import Plan, WorkerId
from planaria.plan.program.instructions import Instruction, Op, cut_tail, instructions_of
from planaria.plan.program.layer_cuts import CutOrder
from planaria.plan.program.programs import cut_orders
from planaria.plan.program.units import Phase, Unit


def run_orders(plan: Plan, workers: Sequence[WorkerId], durations: Durations, *, overlap: bool) -> PipelineFlow:
    """Of these workers, who hear from nobody else, in this order.

    Raises:
        AssertionError: a worker waits for a message that nobody sends (an invariant of schedules is broken).
    """
    numbers = _Numbers(plan, durations)
    compiled = [_Compiled(worker, order, numbers) for worker, order in cut_orders(plan, workers).items()]
    begins = [durations.late_s[worker] for worker in workers]
    beats = [one.beats for one in compiled]
    clocks, _, _ = advance_all(beats, numbers.num_messages, numbers.num_links, overlap=overlap, begins=begins)
    stuck = [w for w, own, told in zip(workers, beats, clocks, strict=True) if len(told) <= len(own)]
    assert not stuck, f"workers {stuck} wait for messages that nobody sends"
    return PipelineFlow(parts=tuple(_told(plan, one, own) for one, own in zip(compiled, clocks, strict=True)))


def _told(plan: Plan, compiled: _Compiled, clocks: Sequence[float]) -> WorkerFlow:
    layers_s = {layer: clocks[at] for layer, at in compiled.dues.items()}
    due_s = {
        group: max([clocks[0], *(layers_s[layer] for layer in plan.groups[group].layers if layer in layers_s)])
        for group in plan.groups_of[compiled.worker]
    }
    return WorkerFlow(end_s=clocks[-1], compute_s=compiled.total_s, due_s=due_s, longest_s=compiled.longest_s)


class _Numbers:
    """Of messages and links.

    A message's number is that of its kind and of its microbatch; all of one kind go over one boundary to one receiver.
    """

    def __init__(self, plan: Plan, durations: Durations) -> None:
        self.durations = durations
        self._stride = plan.num_microbatches
        self._kinds: dict[tuple[bool, int, int, WorkerId], int] = {}
        self._links: dict[tuple[WorkerId, WorkerId], int] = {}

    @property
    def num_messages(self) -> int:
        return len(self._kinds) * self._stride

    @property
    def num_links(self) -> int:
        return len(self._links)

    def message(self, instruction: Instruction, receiver: WorkerId) -> int:
        """The number of the first microbatch's."""
        is_gradient = instruction.op in (Op.SEND_GRADIENT, Op.RECV_GRADIENT)
        key = is_gradient, instruction.born, instruction.first_layer, receiver
        return self._kinds.setdefault(key, len(self._kinds)) * self._stride

    def link(self, sender: WorkerId, receiver: WorkerId) -> int:
        return self._links.setdefault((sender, receiver), len(self._links))


@dataclass(frozen=True, slots=True)
class _Pattern:
    """Of a phase of a leg.

    Attributes:
        beats: for microbatch 0.
        counts: layers, with the beats after which their gradients are added.
        seconds: of each forward or backward.
        is_mute: no beat waits for a message or sends one, so all microbatches have the same.
    """

    beats: tuple[Beat, ...]
    counts: tuple[tuple[int, int], ...]
    seconds: tuple[float, ...]
    is_mute: bool


class _Compiled:
    """A worker's beats.

    Attributes:
        worker: whose.
        beats: in order.
        dues: of each layer that it counts, the beats after which its gradients are whole.
        total_s: seconds that it computes, added in order.
        longest_s: of its longest forward or backward.
    """

    def __init__(self, worker: WorkerId, order: CutOrder, numbers: _Numbers) -> None:
        self.worker = worker
        self.beats: list[Beat] = []
        self.dues: dict[int, int] = {}
        self.total_s = 0.0
        self.longest_s = 0.0
        self._numbers = numbers
        self._patterns: dict[tuple[int, Phase, bool, bool], _Pattern] = {}
        self._alike: dict[Hashable, _Pattern] = {}
        """Legs of different routes may be equal."""
        tail = cut_tail(order)
        self._add_units(order.units[: order.end], order, self._last(order, tail))
        for instruction in tail:
            seconds = numbers.durations.compute_s(worker, instruction)
            self.total_s += seconds
            self.longest_s = max(self.longest_s, seconds)
            self.beats.append((-1, seconds, -1, -1, 0.0))
            self.dues.update(dict.fromkeys(instruction.counted, len(self.beats)))
        self._add_units(order.units[order.own_end :], order, ())

    def _last(self, order: CutOrder, tail: Iterable[Instruction]) -> set[int]:
        """The places of units that are the last to count some layer."""
        legs = {id(unit.hop): unit.hop for unit in order.units[: order.own_end] if not unit.phase.is_shadow}
        missing = {layer for leg in legs.values() for layer in leg.counted}
        missing.difference_update(layer for instruction in tail for layer in instruction.counted)
        last: set[int] = set()
        for at in range(order.end - 1, -1, -1):
            if not missing:
                break
            phase, leg, _, _ = order.units[at]
            whole = phase is Phase.INPUT_GRADIENT and not leg.has_weight and not leg.is_done
            if (whole or phase is Phase.WEIGHT_GRADIENTS) and not missing.isdisjoint(leg.counted):
                last.add(at)
                missing.difference_update(leg.counted)
        return last

    def _add_units(self, units: Sequence[Unit], order: CutOrder, last: Iterable[int]) -> None:
        patterns, cut, is_last = self._patterns, order.cut, set(last)
        for at, unit in enumerate(units):
            phase, leg, microbatch, _ = unit
            is_cut = (leg.born, microbatch, phase) in cut
            key = id(leg), phase, is_cut, at in is_last
            pattern = patterns.get(key)
            if pattern is None:
                alike = leg, unit.by, *key[1:]
                pattern = self._alike.get(alike)
                if pattern is None:
                    instructions = [*instructions_of(unit, by_layer=is_cut)]
                    pattern = self._alike[alike] = self._pattern_of(instructions, is_last=at in is_last)
                patterns[key] = pattern
            self._add(pattern, microbatch, is_last=at in is_last)

    def _add(self, pattern: _Pattern, microbatch: int, *, is_last: bool) -> None:
        if is_last:
            for layer, after in pattern.counts:
                self.dues[layer] = len(self.beats) + after
        for seconds in pattern.seconds:
            self.total_s += seconds
        if pattern.is_mute:
            self.beats += pattern.beats
            return
        for awaited, seconds, sent, link, wire in pattern.beats:
            self.beats.append(
                (
                    awaited + microbatch if awaited >= 0 else -1,
                    seconds,
                    sent + microbatch if sent >= 0 else -1,
                    link,
                    wire,
                )
            )

    def _pattern_of(self, instructions: Sequence[Instruction], *, is_last: bool) -> _Pattern:
        """Where somebody wants to know when layers are counted, nothing is sent in the same beat."""
        beats: list[Beat] = []
        counts: list[tuple[int, int]] = []
        computes: list[float] = []
        durations, numbers, worker = self._numbers.durations, self._numbers, self.worker
        awaited, seconds = -1, 0.0

        def flush() -> None:
            nonlocal awaited, seconds
            if awaited >= 0 or seconds > 0.0:
                beats.append((awaited, seconds, -1, -1, 0.0))
            awaited, seconds = -1, 0.0

        for instruction in instructions:
            op, peer = instruction.op, instruction.peer
            if op in (Op.RECV_ACTIVATION, Op.RECV_GRADIENT):
                flush()
                awaited = numbers.message(instruction, worker)
            elif op in (Op.SEND_ACTIVATION, Op.SEND_GRADIENT):
                assert peer is not None
                wire = durations.message_s(worker, peer, instruction.first_layer)
                beats.append((awaited, seconds, numbers.message(instruction, peer), numbers.link(worker, peer), wire))
                awaited, seconds = -1, 0.0
            elif op is not Op.LOAD:
                if seconds > 0.0:
                    flush()
                seconds = durations.compute_s(worker, instruction)
                computes.append(seconds)
                self.longest_s = max(self.longest_s, seconds)
                if is_last:
                    flush()
                    if op is not Op.SHADOW_BACKWARD:
                        counts += [(layer, len(beats)) for layer in instruction.counted]
        flush()
        is_mute = all(awaited < 0 and sent < 0 for awaited, _, sent, _, _ in beats)
        return _Pattern(tuple(beats), tuple(counts), tuple(computes), is_mute)
