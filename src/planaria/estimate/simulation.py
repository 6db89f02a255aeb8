"""The simulation of forwards, backwards and messages in virtual time, in topological order, without an event queue.

A worker goes on until it needs a message that is not sent yet; whoever sends that lets it go on. What is computed does
not depend on the order in which workers are looked at, because each does its own things in its own order, and each link
carries one sender's messages in the sender's order.

What a worker does is a list of beats. They are made from its instructions: of a whole program, where it matters when
each message came (`run_programs`); of its units of work (`run_orders`), where the units of one phase of a hop differ in
the microbatch alone, so that their instructions are looked at once; and of a pipeline whose microbatches all count the
same (`PipelineRun`), where this is done once for any number of them. Owns nothing of the order of work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from operator import itemgetter
from typing import NamedTuple, TypeVar

import msgspec

from planaria.estimate.durations import Durations
from planaria.plan.plan import Plan, Route, Stage, WorkerId
from planaria.plan.program.hops import RouteHop, route_hops
from planaria.plan.program.instructions import Instruction, Op, Program, cut_tail, instructions_of
from planaria.plan.program.layer_cuts import CutOrder
from planaria.plan.program.orders import turns
from planaria.plan.program.programs import cut_orders
from planaria.plan.program.routes import travellers
from planaria.plan.program.units import Phase, Unit
from planaria.plan.schedule_kind import ScheduleKind

Inbox = list[float]
"""Arrivals of messages of one kind, by microbatch; -1: it was not sent; below: and its receiver waits for it."""

Piece = tuple[float, list[float]]
"""Seconds of further compute, and where to note its end."""

Beat = tuple[Inbox | None, float, Sequence[Piece] | None, Inbox | None, list[float], float]
"""A beat: where a message is awaited; seconds of compute, and further pieces of it; and where a message is then sent,
when the link that takes it is free, and its seconds on the link."""

_Kind = tuple[bool, int, int, WorkerId]
"""A kind of message: is it a gradient, born, boundary, receiver."""

_Item = TypeVar("_Item")

MOST_COUNTED = 256
"""Sets of counted layers for which a pipeline's hops are remembered; then all are forgotten."""

_SENDS = (Op.SEND_ACTIVATION, Op.SEND_GRADIENT)
_RECEIVES = (Op.RECV_ACTIVATION, Op.RECV_GRADIENT)
_GRADIENTS = (Op.SEND_GRADIENT, Op.RECV_GRADIENT)
_NO_LINK = [0.0]
_NOTHING: Beat = None, 0.0, None, None, _NO_LINK, 0.0


class WorkerTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Times of one worker, in seconds from the step's beginning.

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
class JointTimes:
    """Times of workers that hear from no others: those of a pipeline, or of all routes that cross.

    Attributes:
        parts: the workers', in order.
    """

    parts: tuple[WorkerTimes, ...]

    @cached_property
    def compute_s(self) -> tuple[float, ...]:
        """Seconds of each worker's compute."""
        return tuple(part.compute_s for part in self.parts)

    @cached_property
    def due_s(self) -> dict[int, float]:
        """Times at which each group's gradients are whole at all of these workers."""
        due_s: dict[int, float] = {}
        for part in self.parts:
            for group, due in part.due_s.items():
                due_s[group] = max(due_s.get(group, 0.0), due)
        return due_s

    @cached_property
    def longest_s(self) -> float:
        """Seconds of the longest forward or backward."""
        return max(part.longest_s for part in self.parts)

    @cached_property
    def ends_s(self) -> tuple[tuple[tuple[int, ...], float], ...]:
        """The groups and the end of the last compute of each worker."""
        return tuple((tuple(part.due_s), part.end_s) for part in self.parts)


@dataclass(slots=True, kw_only=True)
class ProgramTimes:
    """Times at which parts of programs happened, in seconds from the step's beginning.

    Attributes:
        ends_s: of each worker, the end of its last compute (or message, where its sends block).
        due_s: when each worker's gradients of each of its groups were whole.
        compute_s: seconds that each worker computed.
    """

    ends_s: dict[WorkerId, float]
    due_s: dict[tuple[WorkerId, int], float]
    compute_s: dict[WorkerId, float]
    _inboxes: Mapping[_Kind, Inbox] = field(default_factory=dict)

    def arrival_s(self, instruction: Instruction, receiver: WorkerId) -> float:
        """Returns when a message that was sent was there."""
        return self._inboxes[_kind(instruction, receiver)][instruction.microbatch]


def run_programs(programs: Mapping[WorkerId, Program], durations: Durations, *, overlap: bool) -> ProgramTimes:
    """Runs programs, which must send every message that one of them waits for.

    Raises:
        AssertionError: a program waits for a message that nobody sends (an invariant of schedules is broken).
    """
    channels = _Channels(
        durations, 1 + max((i.microbatch for program in programs.values() for i in program), default=0)
    )
    workers = [_Worker(worker, channels) for worker in programs]
    compute_s = {own.worker: own.add_program(programs[own.worker]) for own in workers}
    ends_s = _advance(workers, overlap=overlap)
    dues = ((own.worker, i, due) for own in workers for i, due in own.all.dues if i.op is Op.SYNC)
    return ProgramTimes(
        ends_s=dict(zip(programs, ends_s, strict=True)),
        due_s={(worker, instruction.group): due[0] for worker, instruction, due in dues},
        compute_s=compute_s,
        _inboxes=channels.inboxes,
    )


def run_orders(plan: Plan, workers: Sequence[WorkerId], durations: Durations, *, overlap: bool) -> JointTimes:
    """Runs what these workers do under the plan; they hear from no others.

    Raises:
        AssertionError: a worker waits for a message that nobody sends (an invariant of schedules is broken).
    """
    channels = _Channels(durations, plan.num_microbatches)
    running = [_Worker(worker, channels) for worker in workers]
    for own, order in zip(running, cut_orders(plan, workers).values(), strict=True):
        own.add_order(order)
    return _joint_times(plan, running, _advance(running, overlap=overlap))


def is_whole(plan: Plan, routes: Sequence[Route]) -> bool:
    """Returns whether a `PipelineRun` tells what the routes of a pipeline come to."""
    is_split = plan.schedule.splits_backward and len(routes) > 1
    return plan.redundancy is None and not is_split and all(route.reached is None for route in routes)


class PipelineRun:
    """A pipeline by itself, as often as it carries other microbatches.

    Whoever differs from it in the numbers of workers and microbatches alone takes as long.

    Args:
        plan: without redundant compute.
        stages: of the pipeline.
        durations: of the plan.
        overlap: whether messages travel beside the sender's compute.
    """

    def __init__(self, plan: Plan, stages: tuple[Stage, ...], durations: Durations, *, overlap: bool) -> None:
        self._plan = plan
        self._stages = stages
        self._overlap = overlap
        self._channels = _Channels(durations, 0)
        self._workers = [_Worker(stage.worker, self._channels) for stage in stages]
        self._passing: dict[tuple[int, ...], list[_Passing]] = {}

    def times(self, routes: Sequence[Route]) -> JointTimes:
        """Returns what such routes come to; nothing of them was done before, and split backwards are of one route."""
        kind_of = {counted: at for at, counted in enumerate(dict.fromkeys(route.counted for route in routes))}
        passing = [self._passing_of(counted, routes[0]) for counted in kind_of]
        order = [at for _, _, at in travellers(routes)]
        last = sorted(((turn, at) for at, turn in {at: turn for turn, at in enumerate(order)}.items()), reverse=True)
        kinds = [kind_of[route.counted] for route in routes]
        ends = [(turn, kinds[at], routes[at].born) for turn, at in last]
        turn_kinds = [kinds[at] for at in order]
        numbers = [turn_kinds.count(at) for at in range(len(passing))]
        self._channels.reset(len(order))
        for place, own in enumerate(self._workers):
            own.reset()
            own.add_turns([its[place] for its in passing], turn_kinds, numbers, ends, self._plan.schedule)
        return _joint_times(self._plan, self._workers, _advance(self._workers, overlap=self._overlap))

    def _passing_of(self, counted: tuple[int, ...], route: Route) -> list[_Passing]:
        found = self._passing.get(counted)
        if found is None:
            if len(self._passing) >= MOST_COUNTED:
                self._passing.clear()
            like = msgspec.structs.replace(route, hops=self._stages, counted=counted)
            hops = route_hops(like, split=self._plan.schedule.splits_backward)
            found = [own.passing(hop) for own, hop in zip(self._workers, hops, strict=True)]
            self._passing[counted] = found
        return found


def _joint_times(plan: Plan, workers: Sequence[_Worker], ends_s: Sequence[float]) -> JointTimes:
    return JointTimes(parts=tuple(own.times(plan, end_s) for own, end_s in zip(workers, ends_s, strict=True)))


class _Channels:
    """Channels between workers: what is awaited and was sent, of so many microbatches, and when links are free."""

    def __init__(self, durations: Durations, num_microbatches: int) -> None:
        self.durations = durations
        self.inboxes: dict[_Kind, Inbox] = {}
        self._links: dict[tuple[WorkerId, WorkerId], list[float]] = {}
        self._nothing = [-1.0] * num_microbatches

    def reset(self, num_microbatches: int) -> None:
        """Forgets all that was sent."""
        self._nothing = [-1.0] * num_microbatches
        for inbox in self.inboxes.values():
            inbox[:] = self._nothing
        for link in self._links.values():
            link[0] = 0.0

    def inbox(self, instruction: Instruction, receiver: WorkerId) -> Inbox:
        """Returns where such messages come."""
        kind = _kind(instruction, receiver)
        found = self.inboxes.get(kind)
        if found is None:
            found = self.inboxes[kind] = self._nothing[:]
        return found

    def link(self, sender: WorkerId, receiver: WorkerId) -> list[float]:
        """Returns when the link is free."""
        return self._links.setdefault((sender, receiver), [0.0])


class _Beats(NamedTuple):
    """Beats of some of a worker's instructions.

    Attributes:
        beats: in order.
        microbatches: of each beat, whose messages it awaits and sends.
        dues: of each instruction that counts layers or sums a group, where the time is noted at which that can be.
    """

    beats: list[Beat]
    microbatches: list[int]
    dues: list[tuple[Instruction, list[float]]]


class _Passing(NamedTuple):
    """Microbatches that count the same layers, at a place of a pipeline.

    Attributes:
        hop: where they pass.
        beats: the only one of each phase; when gradients are whole is noted nowhere.
        cut: a backward that goes layer by layer; none where backwards are split, or nothing counts.
    """

    hop: RouteHop
    beats: Mapping[Phase, Beat]
    cut: _Beats | None


class _Worker:
    """A worker's program, beat by beat.

    Attributes:
        worker: who.
        begin_s: when it begins.
        all: its beats.
    """

    def __init__(self, worker: WorkerId, channels: _Channels) -> None:
        self.worker = worker
        self.begin_s = channels.durations.late_s[worker]
        self._devices, self._speed = channels.durations.devices[worker], channels.durations.speeds[worker]
        self._channels = channels
        self._patterns: dict[tuple[RouteHop, Phase, WorkerId | None, bool], _Beats] = {}
        self.reset()

    def reset(self) -> None:
        """Starts anew; what is known of hops is kept."""
        self.all = _Beats([], [], [])
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

    def passing(self, hop: RouteHop) -> _Passing:
        """Returns what microbatches are that pass this hop of a pipeline without redundant compute."""
        phases = [Phase.FORWARD] + [Phase.INPUT_GRADIENT] * hop.keeps + [Phase.WEIGHT_GRADIENTS] * hop.has_weight
        beats = {}
        for phase in phases:
            ((inbox, seconds, _, outbox, link, wire_s),) = self._pattern(hop, phase, None, is_cut=False).beats
            beats[phase] = inbox, seconds, None, outbox, link, wire_s
        is_cut = bool(hop.counted) and not hop.has_weight
        return _Passing(hop, beats, self._pattern(hop, Phase.INPUT_GRADIENT, None, is_cut=True) if is_cut else None)

    def add_turns(
        self,
        passing: Sequence[_Passing],
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
        known: dict[tuple[int, Phase, bool], tuple[_Beats, list[int]]] = {}
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

    def _pattern(self, hop: RouteHop, phase: Phase, by: WorkerId | None, *, is_cut: bool) -> _Beats:
        """Returns a hop's beats, as remembered: hops of different routes may be equal."""
        key = hop, phase, by, is_cut
        found = self._patterns.get(key)
        if found is None:
            found = self._compile(instructions_of(Unit(phase, hop, 0, by), by_layer=is_cut))
            self._patterns[key] = found
        return found

    def _count(self, found: _Beats, times: int) -> None:
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

    def _compile(self, instructions: Iterable[Instruction]) -> _Beats:
        channels, worker = self._channels, self.worker
        durations, computed = channels.durations, channels.durations.computed
        found = _Beats([], [], [])
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


def _advance(workers: Sequence[_Worker], *, overlap: bool) -> list[float]:
    """Runs all beats, as far as messages come, and returns when each worker is done.

    Raises:
        AssertionError: a worker waits for a message that nobody sends.
    """
    ends_s: dict[int, float] = {}
    ready = list(range(len(workers)))
    running = [_run(at, own, ready, ends_s, overlap=overlap) for at, own in enumerate(workers)]
    while ready:
        next(running[ready.pop()], None)
    stuck = [own.worker for at, own in enumerate(workers) if at not in ends_s]
    assert not stuck, f"workers {stuck} wait for messages that nobody sends"
    return [ends_s[at] for at in range(len(workers))]


def _run(at: int, own: _Worker, ready: list[int], ends_s: dict[int, float], *, overlap: bool) -> Iterator[None]:
    """Runs a worker's beats until it is done, and gives way where it waits: the one hot loop."""
    clock = own.begin_s
    for (inbox, seconds, pieces, outbox, link, wire_s), microbatch in zip(
        own.all.beats, own.all.microbatches, strict=True
    ):
        if inbox is not None:
            arrival = inbox[microbatch]
            if arrival < 0.0:
                inbox[microbatch] = -2.0 - at
                yield
                arrival = inbox[microbatch]
            if arrival > clock:
                clock = arrival
        clock += seconds
        if pieces is not None:
            for more_s, due in pieces:
                clock += more_s
                due[0] = clock
        if outbox is not None:
            start = link[0]
            if start < clock:
                start = clock
            waiting = outbox[microbatch]
            outbox[microbatch] = link[0] = end = start + wire_s
            if waiting < -1.0:
                ready.append(int(-2.0 - waiting))
            if not overlap:
                clock = end
    ends_s[at] = clock


def _kind(instruction: Instruction, receiver: WorkerId) -> _Kind:
    return instruction.op in _GRADIENTS, instruction.born, instruction.first_layer, receiver
