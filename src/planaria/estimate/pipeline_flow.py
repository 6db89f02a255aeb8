"""Pipeline flow: a pipeline's forwards, backwards and messages in virtual time, without its workers' programs.

What `planaria.estimate.flow` makes of the programs of a way whose workers serve no other one, to the last bit and about
ten times as fast: what differs between microbatches is only when they come. Owns nothing of the order of work, which
is that of `planaria.plan.schedule`, and must give the same results as the programs do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import chain, groupby, repeat
from operator import add

from planaria.estimate.durations import Durations
from planaria.estimate.flow import Beat, advance_all
from planaria.plan.plan import Plan
from planaria.plan.program import Instruction, Op
from planaria.plan.schedule import Path
from planaria.plan.work import Leg, legs, merge_hops


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFlow:
    """Of one worker of a pipeline, in seconds from the step's beginning.

    Attributes:
        end_s: the end of its last compute (or message, where its sends block).
        compute_s: seconds that it computes.
        due_s: of each of its groups, when its gradients are whole.
        longest_s: of its longest forward or backward.
    """

    end_s: float
    compute_s: float
    due_s: dict[int, float]
    longest_s: float


@dataclass(frozen=True, kw_only=True)
class PipelineFlow:
    """Of a pipeline.

    Attributes:
        parts: its workers', from the first stage to the last.
    """

    parts: tuple[WorkerFlow, ...]

    @cached_property
    def compute_s(self) -> tuple[float, ...]:
        """Of each worker."""
        return tuple(part.compute_s for part in self.parts)

    @cached_property
    def due_s(self) -> dict[int, float]:
        """Of each group, when its gradients are whole at all of the pipeline's workers."""
        due_s: dict[int, float] = {}
        for part in self.parts:
            for group, due in part.due_s.items():
                due_s[group] = max(due_s.get(group, 0.0), due)
        return due_s

    @cached_property
    def longest_s(self) -> float:
        """Of its longest forward or backward."""
        return max(part.longest_s for part in self.parts)

    @cached_property
    def ends_s(self) -> tuple[tuple[tuple[int, ...], float], ...]:
        """Of each worker, its groups and the end of its last compute."""
        return tuple((tuple(part.due_s), part.end_s) for part in self.parts)


def is_plain(plan: Plan, path: Path) -> bool:
    """Whether `run_pipeline` can run it: nobody shadows, backwards are whole, and nothing was done before a loss."""
    return (
        plan.redundancy is None
        and not plan.schedule.splits_backward
        and all(route.reached is None for route in path.routes)
    )


def run_pipeline(plan: Plan, path: Path, durations: Durations, *, overlap: bool) -> PipelineFlow:
    """Only for a plain path."""
    ways = [legs(route, merge_hops(route.hops), split=False) for route in path.routes]
    travellers = [(born, microbatch, ways[at]) for born, microbatch, at in path.travellers]
    stages = [_Stage(plan, path, place, travellers, durations) for place in range(len(path.hops))]
    num_messages = 2 * len(stages) * len(travellers)
    all_beats = [stage.beats for stage in stages]
    begins = [durations.late_s[hop.worker] for hop in path.hops]
    if overlap:
        clocks = _advance(all_beats, num_messages, 2 * len(stages), begins)
    else:
        clocks, _, _ = advance_all(all_beats, num_messages, 2 * len(stages), overlap=False, begins=begins)
    return PipelineFlow(parts=tuple(stage.result(plan, at) for stage, at in zip(stages, clocks, strict=True)))


def _advance(
    all_beats: Sequence[Sequence[Beat]], num_messages: int, num_links: int, begins: Sequence[float]
) -> list[list[float]]:
    """The clocks of `advance_all` where sends overlap with compute."""
    arrivals, waiting, free = [-1.0] * num_messages, [-1] * num_messages, [0.0] * num_links
    all_clocks: list[list[float]] = [[begin] for begin in begins]
    left = [iter(beats) for beats in all_beats]
    held: list[tuple[Beat, ...]] = [()] * len(all_beats)
    """Of each worker, the beat that it waits with."""
    ready = list(range(len(all_beats)))
    while ready:
        at = ready.pop()
        clocks = all_clocks[at]
        clock, note = clocks[-1], clocks.append
        for beat in chain(held[at], left[at]):
            awaited, seconds, sent, link, wire = beat
            if awaited >= 0:
                arrival = arrivals[awaited]
                if arrival > clock:
                    clock = arrival
                elif arrival < 0:
                    waiting[awaited] = at
                    held[at] = (beat,)
                    break
            clock += seconds
            if sent >= 0:
                begin = free[link]
                if begin < clock:
                    begin = clock
                arrivals[sent] = free[link] = begin + wire
                if waiting[sent] >= 0:
                    ready.append(waiting[sent])
            note(clock)
    return all_clocks


class _Stage:
    """One worker's work, compiled.

    Messages are numbered by the place that gets them and the traveller: activations first, then gradients. Links are
    numbered by the place that sends, likewise.
    """

    def __init__(
        self,
        plan: Plan,
        path: Path,
        place: int,
        travellers: Sequence[tuple[int, int, tuple[Leg, ...]]],
        durations: Durations,
    ) -> None:
        self._durations = durations
        self._worker = worker = path.hops[place].worker
        self._place, self._num_places, self._num = place, len(path.hops), len(travellers)
        here = [(born, microbatch, way[place]) for born, microbatch, way in travellers]
        cut = _to_cut(here)
        first = path.hops[place].first_layer
        self._ahead_s = self._behind_s = 0.0
        if place + 1 < self._num_places:
            self._ahead_s = durations.message_s(worker, path.hops[place + 1].worker, path.hops[place].end_layer)
        if place:
            self._behind_s = durations.message_s(worker, path.hops[place - 1].worker, first)
        self._last: dict[int, int] = {}
        """Of each layer, the number of beats up to its last count."""
        ahead = plan.schedule.forwards_ahead(self._num_places - 1 - place, self._num)
        self.beats = self._compiled(here, cut, ahead)
        seconds = [beat[1] for beat in self.beats]
        self._total_s = reduce(add, seconds, 0.0)
        self._longest_s = max(seconds, default=0.0)

    def result(self, plan: Plan, clocks: Sequence[float]) -> WorkerFlow:
        """Told by the clock after each beat."""
        last = self._last
        due_s = {
            group: clocks[max(last.get(layer, 0) for layer in plan.groups[group].layers)]
            for group in plan.groups_of[self._worker]
        }
        return WorkerFlow(end_s=clocks[-1], compute_s=self._total_s, due_s=due_s, longest_s=self._longest_s)

    def _compiled(
        self, here: Sequence[tuple[int, int, Leg]], cut: Collection[tuple[int, int]], ahead: int
    ) -> list[Beat]:
        """Forwards and backwards in turn, after so many forwards."""
        forwards, backwards = self._in_order(here)
        beats: list[Beat] = list(forwards[:ahead])
        turn = 0
        for stop in [at for at, (born, microbatch, _) in enumerate(here) if (born, microbatch) in cut]:
            backward = backwards[stop]
            if backward is None:
                continue
            beats += _in_turn(forwards[ahead + turn : ahead + stop], backwards[turn:stop])
            beats += forwards[ahead + stop : ahead + stop + 1]
            self._by_layer(beats, here[stop][2], backward[0])
            if backward[2] >= 0:
                beats.append((-1, 0.0, *backward[2:]))
            turn = stop + 1
        return beats + _in_turn(forwards[ahead + turn :], backwards[turn:])

    def _in_order(self, here: Sequence[tuple[int, int, Leg]]) -> tuple[list[Beat], list[Beat | None]]:
        """The forward and the whole backward, if there is one, of each that passes."""
        place, num, places = self._place, self._num, self._num_places
        forwards: list[Beat] = []
        backwards: list[Beat | None] = []
        for _, alike in groupby(here, key=lambda one: id(one[2])):
            own = [leg for _, _, leg in alike]
            leg, first, count = own[0], len(forwards), len(own)
            seconds, link, wire_s = self._forward(leg)
            comes = _numbers(place * num + first, count, 0 if place else -1)
            goes = _numbers((place + 1) * num + first, count, link)
            forwards += zip(comes, repeat(seconds), goes, repeat(link), repeat(wire_s))
            if leg.backward is None:
                backwards += repeat(None, count)
                continue
            seconds, link, wire_s = self._backward(leg)
            comes = _numbers((places + place) * num + first, count, -1 if leg.above is None else 0)
            goes = _numbers((places + place - 1) * num + first, count, link)
            backwards += zip(comes, repeat(seconds), goes, repeat(link), repeat(wire_s))
        return forwards, backwards

    def _forward(self, leg: Leg) -> tuple[float, int, float]:
        """Seconds, the link that takes what comes of it, or -1, and the seconds there."""
        seconds = self._seconds(Op.FORWARD, leg.first_layer, leg.end_layer, ())
        return (seconds, -1, 0.0) if leg.activation_to is None else (seconds, self._place, self._ahead_s)

    def _backward(self, leg: Leg) -> tuple[float, int, float]:
        """The same of a backward, where there is one."""
        if leg.backward is None:
            return 0.0, -1, 0.0
        seconds = self._seconds(Op.BACKWARD, leg.low_layer, leg.end_layer, leg.counted)
        if leg.gradient_to is None:
            return seconds, -1, 0.0
        return seconds, self._num_places + self._place, self._behind_s

    def _by_layer(self, beats: list[Beat], leg: Leg, awaited: int) -> None:
        """A backward that is cut, from the top layer down."""
        for layer in reversed(range(leg.low_layer, leg.end_layer)):
            counted = (layer,) if layer in leg.counted else ()
            beats.append((awaited, self._seconds(Op.BACKWARD, layer, layer + 1, counted), -1, -1, 0.0))
            awaited = -1
            if counted:
                self._last[layer] = len(beats)

    def _seconds(self, op: Op, first: int, end: int, counted: tuple[int, ...]) -> float:
        instruction = Instruction(op=op, first_layer=first, end_layer=end, counted=counted)
        return self._durations.compute_s(self._worker, instruction)


def _numbers(first: int, count: int, link: int) -> Iterable[int]:
    """Of so many messages; -1 for each where no link takes them."""
    return range(first, first + count) if link >= 0 else repeat(-1, count)


def _in_turn(forwards: Sequence[Beat], backwards: Sequence[Beat | None]) -> list[Beat]:
    """A forward and a backward in turn, then the other backwards; of what has no backward its place is left out."""
    num = len(forwards)
    beats: list[Beat | None] = [None] * (2 * num)
    beats[::2], beats[1::2] = forwards, backwards[:num]
    beats += backwards[num:]
    return [beat for beat in beats if beat is not None]


def _to_cut(here: Sequence[tuple[int, int, Leg]]) -> set[tuple[int, int]]:
    """Born and microbatch of the backwards that are cut into layers: of those born together, the last of each layer."""
    tops: dict[int, tuple[int, Leg]] = {}
    for _, microbatch, leg in here:
        found = tops.get(id(leg))
        if found is None or microbatch > found[0]:
            tops[id(leg)] = microbatch, leg
    last: dict[tuple[int, int], int] = {}
    for microbatch, leg in tops.values():
        for layer in leg.counted if leg.backward is not None else ():
            last[leg.born, layer] = max(last.get((leg.born, layer), -1), microbatch)
    return {(born, microbatch) for (born, _), microbatch in last.items()}
