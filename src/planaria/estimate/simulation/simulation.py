"""The simulation of forwards, backwards and messages in virtual time, in topological order, without an event queue.

A worker goes on until it needs a message that is not sent yet; whoever sends that lets it go on. What is computed does
not depend on the order in which workers are looked at, because each does its own things in its own order, and each link
carries one sender's messages in the sender's order.

A program, where it matters when each message came (`run_programs`), units of work (`run_orders`), and a pipeline whose
microbatches all count the same (`PipelineRun`) become the same beats. Owns nothing of the order of work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from planaria.estimate.durations import Durations
from planaria.estimate.simulation.channels import Channels, Inbox, MessageKind, kind_of
from planaria.estimate.simulation.times import JointTimes
from planaria.estimate.simulation.worker_beats import Passing, WorkerBeats
from planaria.plan.plan import Plan, Route, Stage, WorkerId
from planaria.plan.program.hops import route_hops
from planaria.plan.program.instructions import Instruction, Op, Program
from planaria.plan.program.programs import cut_orders
from planaria.plan.program.routes import travellers

MOST_COUNTED = 256
"""Sets of counted layers for which a pipeline's hops are remembered; then all are forgotten."""


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
    _inboxes: Mapping[MessageKind, Inbox] = field(default_factory=dict)

    def arrival_s(self, instruction: Instruction, receiver: WorkerId) -> float:
        """Returns when a message that was sent was there."""
        return self._inboxes[kind_of(instruction, receiver)][instruction.microbatch]


def run_programs(programs: Mapping[WorkerId, Program], durations: Durations, *, overlap: bool) -> ProgramTimes:
    """Runs programs, which must send every message that one of them waits for.

    Raises:
        AssertionError: a program waits for a message that nobody sends (an invariant of schedules is broken).
    """
    channels = Channels(durations, 1 + max((i.microbatch for program in programs.values() for i in program), default=0))
    workers = [WorkerBeats(worker, channels) for worker in programs]
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
    channels = Channels(durations, plan.num_microbatches)
    running = [WorkerBeats(worker, channels) for worker in workers]
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
        self._channels = Channels(durations, 0)
        self._workers = [WorkerBeats(stage.worker, self._channels) for stage in stages]
        self._passing: dict[tuple[int, ...], list[Passing]] = {}

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

    def _passing_of(self, counted: tuple[int, ...], route: Route) -> list[Passing]:
        found = self._passing.get(counted)
        if found is None:
            if len(self._passing) >= MOST_COUNTED:
                self._passing.clear()
            like = msgspec.structs.replace(route, hops=self._stages, counted=counted)
            hops = route_hops(like, split=self._plan.schedule.splits_backward)
            found = [own.passing(hop) for own, hop in zip(self._workers, hops, strict=True)]
            self._passing[counted] = found
        return found


def _joint_times(plan: Plan, workers: Sequence[WorkerBeats], ends_s: Sequence[float]) -> JointTimes:
    return JointTimes(parts=tuple(own.times(plan, end_s) for own, end_s in zip(workers, ends_s, strict=True)))


def _advance(workers: Sequence[WorkerBeats], *, overlap: bool) -> list[float]:
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


def _run(at: int, own: WorkerBeats, ready: list[int], ends_s: dict[int, float], *, overlap: bool) -> Iterator[None]:
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
