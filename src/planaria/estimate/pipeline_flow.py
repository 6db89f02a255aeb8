"""Pipeline flow: a pipeline's forwards, backwards and messages in virtual time, without its workers' programs.

What `planaria.estimate.flow` makes of the programs of a way whose workers serve no other one, to the last bit and about
ten times as fast: what differs between microbatches is only when they come. Owns nothing of the order of work, which
is that of `planaria.plan.schedule`, and must give the same results as the programs do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


def is_plain(plan: Plan, path: Path) -> bool:
    """Whether `run_pipeline` can run it: nobody shadows, backwards are whole, and nothing was done before a loss."""
    return (
        plan.redundancy is None
        and not plan.schedule.splits_backward
        and all(route.reached is None for route in path.routes)
    )


def run_pipeline(plan: Plan, path: Path, durations: Durations, *, overlap: bool) -> tuple[WorkerFlow, ...]:
    """From the first stage to the last. Only for a plain path."""
    ways = [legs(route, merge_hops(route.hops), split=False) for route in path.routes]
    travellers = [(born, microbatch, ways[at]) for born, microbatch, at in path.travellers]
    stages = [_Stage(plan, path, place, travellers, durations) for place in range(len(path.hops))]
    num_messages = 2 * len(stages) * len(travellers)
    begins = [durations.late_s[hop.worker] for hop in path.hops]
    clocks, _, _ = advance_all(
        [stage.beats for stage in stages], num_messages, 2 * len(stages), overlap=overlap, begins=begins
    )
    return tuple(stage.result(plan, at) for stage, at in zip(stages, clocks, strict=True))


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
        self.beats: list[Beat] = []
        self._last: dict[int, int] = {}
        """Of each layer, the number of beats up to its last count."""
        self._total_s = self._longest_s = 0.0
        self._forwards: dict[int, float] = {}
        self._backwards: dict[int, float] = {}
        ahead = plan.schedule.forwards_ahead(self._num_places - 1 - place, self._num)
        for at in range(ahead):
            self._forward(at, here[at][2])
        for at, (born, microbatch, leg) in enumerate(here):
            if ahead + at < self._num:
                self._forward(ahead + at, here[ahead + at][2])
            if leg.backward is not None:
                self._backward(at, leg, by_layer=(born, microbatch) in cut)

    def result(self, plan: Plan, clocks: Sequence[float]) -> WorkerFlow:
        """Told by the clock after each beat."""
        last = self._last
        due_s = {
            group: clocks[max(last.get(layer, 0) for layer in plan.groups[group].layers)]
            for group in plan.groups_of[self._worker]
        }
        return WorkerFlow(end_s=clocks[-1], compute_s=self._total_s, due_s=due_s, longest_s=self._longest_s)

    def _forward(self, at: int, leg: Leg) -> None:
        seconds = self._forwards.get(id(leg))
        if seconds is None:
            seconds = self._forwards[id(leg)] = self._seconds(Op.FORWARD, leg.first_layer, leg.end_layer, ())
        self._count(seconds)
        place, num = self._place, self._num
        awaited = place * num + at if place else -1
        if leg.activation_to is None:
            self.beats.append((awaited, seconds, -1, -1, 0.0))
        else:
            self.beats.append((awaited, seconds, (place + 1) * num + at, place, self._ahead_s))

    def _backward(self, at: int, leg: Leg, *, by_layer: bool) -> None:
        place, num, places = self._place, self._num, self._num_places
        awaited = (places + place) * num + at if leg.above is not None else -1
        sent, link, wire_s = -1, -1, 0.0
        if leg.gradient_to is not None:
            sent, link, wire_s = (places + place - 1) * num + at, places + place, self._behind_s
        if not by_layer:
            seconds = self._backwards.get(id(leg))
            if seconds is None:
                seconds = self._backwards[id(leg)] = self._seconds(
                    Op.BACKWARD, leg.low_layer, leg.end_layer, leg.counted
                )
            self._count(seconds)
            self.beats.append((awaited, seconds, sent, link, wire_s))
            return
        for layer in reversed(range(leg.low_layer, leg.end_layer)):
            counted = (layer,) if layer in leg.counted else ()
            seconds = self._seconds(Op.BACKWARD, layer, layer + 1, counted)
            self._count(seconds)
            self.beats.append((awaited, seconds, -1, -1, 0.0))
            awaited = -1
            if counted:
                self._last[layer] = len(self.beats)
        if sent >= 0:
            self.beats.append((-1, 0.0, sent, link, wire_s))

    def _seconds(self, op: Op, first: int, end: int, counted: tuple[int, ...]) -> float:
        instruction = Instruction(op=op, first_layer=first, end_layer=end, counted=counted)
        return self._durations.compute_s(self._worker, instruction)

    def _count(self, seconds: float) -> None:
        self._total_s += seconds
        if seconds > self._longest_s:
            self._longest_s = seconds


def _to_cut(here: Sequence[tuple[int, int, Leg]]) -> set[tuple[int, int]]:
    """Born and microbatch of the backwards that are cut into layers: of those born together, the last of each layer."""
    tops: dict[int, tuple[int, Leg]] = {}
    for _, microbatch, leg in here:
        found = tops.get(id(leg))
        if leg.counted and leg.backward is not None and (found is None or microbatch > found[0]):
            tops[id(leg)] = microbatch, leg
    last: dict[tuple[int, int], int] = {}
    for microbatch, leg in tops.values():
        for layer in leg.counted:
            last[leg.born, layer] = max(last.get((leg.born, layer), -1), microbatch)
    return {(born, microbatch) for (born, _), microbatch in last.items()}
