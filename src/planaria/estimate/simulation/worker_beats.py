"""A worker's beats: what it does between two messages, as it follows from its instructions.

They are made from a whole program, where it matters when each message came; from its units of work, where the units of
one phase of a hop differ in the microbatch alone, so that their instructions are looked at once; and from the numbers
of microbatches that pass its place of a pipeline, where this is done once for any number of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple, TypeVar

from planaria.estimate.simulation.channels import Channels, Inbox
from planaria.estimate.simulation.times import WorkerTimes
from planaria.plan.plan import Plan, WorkerId
from planaria.plan.program.hops import RouteHop
from planaria.plan.program.instructions import Instruction, Op, Program, cut_tail, instructions_of
from planaria.plan.program.layer_cuts import CutOrder
from planaria.plan.program.orders import turns
from planaria.plan.program.units import Phase, Unit
from planaria.plan.schedule_kind import ScheduleKind

Piece = tuple[float, list[float]]
"""Seconds of further compute, and where to note its end."""

Beat = tuple[Inbox | None, float, Sequence[Piece] | None, Inbox | None, list[float], float]
"""A beat: where a message is awaited; seconds of compute, and further pieces of it; and where a message is then sent,
when the link that takes it is free, and its seconds on the link."""

_Item = TypeVar("_Item")

_SENDS = (Op.SEND_ACTIVATION, Op.SEND_GRADIENT)
_RECEIVES = (Op.RECV_ACTIVATION, Op.RECV_GRADIENT)
_NO_LINK = [0.0]
_NOTHING: Beat = None, 0.0, None, None, _NO_LINK, 0.0


class Beats(NamedTuple):
    """Beats of some of a worker's instructions.

    Attributes:
        beats: in order.
        microbatches: of each beat, whose messages it awaits and sends.
        dues: of each instruction that counts layers or sums a group, where the time is noted at which that can be.
    """

    beats: list[Beat]
    microbatches: list[int]
    dues: list[tuple[Instruction, list[float]]]


class Passing(NamedTuple):
    """Microbatches that count the same layers, at a place of a pipeline.

    Attributes:
        hop: where they pass.
        beats: the only one of each phase; when gradients are whole is noted nowhere.
        cut: a backward that goes layer by layer; none where backwards are split, or nothing counts.
    """

    hop: RouteHop
    beats: Mapping[Phase, Beat]
    cut: Beats | None


class WorkerBeats:
    """A worker's program, beat by beat.

    Attributes:
        worker: who.
        begin_s: when it begins.
        all: its beats.
    """

    def __init__(self, worker: WorkerId, channels: Channels) -> None:
        self.worker = worker
        self.begin_s = channels.durations.late_s[worker]
        self._devices, self._speed = channels.durations.devices[worker], channels.durations.speeds[worker]
        self._channels = channels
        self._patterns: dict[tuple[RouteHop, Phase, WorkerId | None, bool], Beats] = {}
        self.reset()

    def reset(self) -> None:
        """Starts anew; what is known of hops is kept."""
        self.all = Beats([], [], [])
        self._compute_s = self._longest_s = 0.0

    def times(self, plan: Plan, end_s: float) -> WorkerTimes:
        """Returns what was reached when."""
        begin_s = self.begin_s
        layers_s: dict[int, float] = {}
        for instruction, (due_s,) in self.all.dues:
            for layer in instruction.counted:
                layers_s[layer] = max(layers_s.get(layer, begin_s), due_s)
        due_s_of = {
            group: max([begin_s, *[layers_s[layer] for layer in plan.groups[group].layers if layer in layers_s]])
            for group in plan.groups_of[self.worker]
        }
        return WorkerTimes(end_s=end_s, compute_s=self._compute_s, due_s=due_s_of, longest_s=self._longest_s)

    def add_program(self, program: Program) -> float:
        """Appends all of the program; returns seconds of compute."""
        self.all = self._compile(program)
        return sum(map(_seconds, self.all.beats))

    def add_order(self, order: CutOrder) -> None:
        """Appends all of the units."""
        self._add_units(order.units[: order.end], order)
        tail = self._compile(cut_tail(order))
        self.all.beats.extend(tail.beats)
        self.all.microbatches.extend(tail.microbatches)
        self._count(tail, 1)
        self._add_units(order.units[order.own_end :], order)

    def passing(self, hop: RouteHop) -> Passing:
        """Returns what microbatches are that pass this hop of a pipeline without redundant compute."""
        phases = [Phase.FORWARD] + [Phase.INPUT_GRADIENT] * hop.keeps + [Phase.WEIGHT_GRADIENTS] * hop.has_weight
        beats = {}
        for phase in phases:
            ((inbox, seconds, _, outbox, link, wire_s),) = self._compiled(hop, phase, by_layer=False).beats
            beats[phase] = inbox, seconds, None, outbox, link, wire_s
        is_cut = bool(hop.counted) and not hop.has_weight
        return Passing(hop, beats, self._compiled(hop, Phase.INPUT_GRADIENT, by_layer=True) if is_cut else None)

    def add_turns(
        self,
        passing: Sequence[Passing],
        kinds: Sequence[int],
        numbers: Sequence[int],
        ends: Sequence[tuple[int, int, int]],
        kind: ScheduleKind,
    ) -> None:
        """Appends what passes a place of a pipeline.

        Args:
            passing: of each kind of microbatch.
            kinds: of the microbatches, in the order in which they set out.
            numbers: of microbatches of each kind.
            ends: the last microbatches of routes, the latest first: their turn, kind and when they were born.
            kind: of schedule.
        """
        number, hop = len(kinds), passing[0].hop
        ahead, behind = kind.forwards_ahead(hop.hops_after, number), kind.weights_behind(hop.place)
        num_left = min(number, behind + 1) if hop.has_weight else 0
        columns: list[Beat] = []
        for phase in (Phase.FORWARD, Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENTS)[: 3 if hop.has_weight else 2]:
            own = [one.beats.get(phase, _NOTHING) for one in passing]
            columns += own * number if len(own) == 1 else [own[at] for at in kinds]
        left = [*numbers]
        later: set[tuple[int, int]] = set()
        for turn, at, born in ends:
            cut, counted = passing[at].cut, passing[at].hop.counted
            if cut is not None and (not later or not later.issuperset([(born, layer) for layer in counted])):
                later.update([(born, layer) for layer in counted])
                (columns[number + turn],) = cut.beats
                self._count(cut, 1)
                left[at] -= 1
        pick, turn_of = _turns(number, ahead, behind, hop.has_weight)
        end = len(turn_of) - num_left
        self.all.beats.extend(pick(columns)[:end])
        self.all.microbatches.extend(turn_of[:end])
        for at, one in enumerate(passing):
            for (_, seconds, *_), times in zip(
                one.beats.values(), (numbers[at], left[at], number - num_left), strict=False
            ):
                self._spend(seconds, times)
        if num_left:
            self.add_order(CutOrder.of([Unit(Phase.WEIGHT_GRADIENTS, hop, turn) for turn in turn_of[end:]], kind))

    def _add_units(self, units: Sequence[Unit], order: CutOrder) -> None:
        known: dict[tuple[int, Phase, bool], tuple[Beats, list[int]]] = {}
        beats, microbatches, cut = self.all.beats, self.all.microbatches, order.cut
        cut_microbatches = {microbatch for _, microbatch, _ in cut}
        for phase, hop, microbatch, by in units:
            is_cut = microbatch in cut_microbatches and (hop.born, microbatch, phase) in cut
            key = id(hop), phase, is_cut
            found = known.get(key)
            if found is None:
                found = known[key] = self._pattern(hop, phase, by, is_cut=is_cut), []
            pattern, carried = found
            carried.append(microbatch)
            for beat in pattern.beats:
                beats.append(beat)
                microbatches.append(microbatch)
        for pattern, carried in known.values():
            self._count(pattern, len(carried))

    def _pattern(self, hop: RouteHop, phase: Phase, by: WorkerId | None, *, is_cut: bool) -> Beats:
        """Returns a hop's beats, as remembered: hops of different routes may be equal."""
        key = hop, phase, by, is_cut
        found = self._patterns.get(key)
        if found is None:
            found = self._compiled(hop, phase, by, by_layer=is_cut)
            self._patterns[key] = found
        return found

    def _compiled(self, hop: RouteHop, phase: Phase, by: WorkerId | None = None, *, by_layer: bool) -> Beats:
        return self._compile(instructions_of(Unit(phase, hop, 0, by), by_layer=by_layer))

    def _count(self, found: Beats, times: int) -> None:
        """Adds the compute of these beats, so many times."""
        for _, seconds, pieces, _, _, _ in found.beats:
            self._spend(seconds, times)
            for more_s, _ in pieces or ():
                self._spend(more_s, times)
        for _, due in found.dues:
            due[0] = self.begin_s
        self.all.dues.extend(found.dues)

    def _spend(self, seconds: float, times: int) -> None:
        if times:
            self._compute_s += times * seconds
            if seconds > self._longest_s:
                self._longest_s = seconds

    def _compile(self, instructions: Iterable[Instruction]) -> Beats:
        channels, worker = self._channels, self.worker
        durations, computed = channels.durations, channels.durations.computed
        found = Beats([], [], [])
        inbox: Inbox | None = None
        seconds, microbatch = -1.0, -1
        pieces: list[Piece] = []

        def beat(outbox: Inbox | None = None, link: list[float] = _NO_LINK, wire_s: float = 0.0) -> None:
            nonlocal inbox, seconds, pieces
            found.beats.append((inbox, max(seconds, 0.0), pieces or None, outbox, link, wire_s))
            found.microbatches.append(microbatch)
            inbox, seconds, pieces = None, -1.0, []

        for instruction in instructions:
            op, peer = instruction.op, instruction.peer
            if op is Op.LOAD or op is Op.VOTE or op is Op.APPLY:
                continue
            if op is Op.SYNC:
                pieces.append((0.0, [self.begin_s]))
                found.dues.append((instruction, pieces[-1][1]))
                continue
            if (op in _RECEIVES or instruction.microbatch != microbatch) and (inbox or seconds >= 0.0 or pieces):
                beat()
            microbatch = instruction.microbatch
            if op in _RECEIVES:
                inbox = channels.inbox(instruction, worker)
            elif op in _SENDS:
                assert peer is not None
                wire_s = durations.message_s(worker, peer, instruction.first_layer)
                beat(channels.inbox(instruction, peer), channels.link(worker, peer), wire_s)
            else:
                where = instruction.first_layer, instruction.end_layer, instruction.counted
                more_s, due = computed[self._devices, self._speed, op, *where], [self.begin_s]
                if seconds < 0.0:
                    seconds, more_s = more_s, 0.0
                counts = instruction.counted and op is not Op.SHADOW_BACKWARD
                if counts or more_s:
                    pieces.append((more_s, due))
                if counts:
                    found.dues.append((instruction, due))
        if inbox or seconds >= 0.0 or pieces:
            beat()
        return found


def _seconds(beat: Beat) -> float:
    _, seconds, pieces, _, _, _ = beat
    return seconds + sum([more_s for more_s, _ in pieces]) if pieces else seconds


@lru_cache(maxsize=512)
def _turns(
    number: int, ahead: int, behind: int, is_split: bool
) -> tuple[Callable[[Sequence[_Item]], tuple[_Item, ...]], tuple[int, ...]]:
    """Returns what puts microbatches' forwards, backwards, and weights' gradients where they are apart, in order; and
    that of their microbatches."""
    found = [turn for turn in turns(number, ahead, behind) if is_split or turn[0] is not Phase.WEIGHT_GRADIENTS]
    return itemgetter(*[number * phase + turn for phase, turn in found]), tuple([turn for _, turn in found])
