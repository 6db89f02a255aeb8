"""Flow: forwards, backwards and their messages in virtual time, in topological order, without a queue of events.

A worker runs its program until it needs a message that is not sent yet; whoever sends that lets it go on. What is
computed does not depend on the order in which workers are looked at, because each does its own things in its own order
and each link carries one sender's messages in the sender's order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planaria.estimate.durations import Durations
from planaria.plan.plan import WorkerId
from planaria.plan.program.instructions import Instruction, Op, Program

Beat = tuple[int, float, int, int, float]
"""Number of the message waited for, or -1; seconds of compute; number of the message then sent, or -1, of the link that
takes it, and its seconds on the link."""

_MessageKey = tuple[bool, int, int, int, WorkerId]
"""Is it a gradient, born, microbatch, boundary, receiver."""


@dataclass(slots=True)
class Flow:
    """When what happened, in seconds from the step's beginning.

    Attributes:
        ends_s: of each worker, the end of its last compute (or message, where its sends block).
        due_s: when each worker's gradients of each of its groups were whole.
        compute_s: seconds that each worker computed.
    """

    ends_s: dict[WorkerId, float] = field(default_factory=dict)
    due_s: dict[tuple[WorkerId, int], float] = field(default_factory=dict)
    compute_s: dict[WorkerId, float] = field(default_factory=dict)
    _numbers: dict[_MessageKey, int] = field(default_factory=dict)
    _starts: list[float] = field(default_factory=list)
    _arrivals: list[float] = field(default_factory=list)

    def message(self, instruction: Instruction, receiver: WorkerId) -> tuple[float, float]:
        """Start on the link, and arrival, of a message that was sent."""
        number = self._numbers[_key(instruction, receiver)]
        return self._starts[number], self._arrivals[number]


def run(programs: Mapping[WorkerId, Program], durations: Durations, *, overlap: bool) -> Flow:
    """Run the programs, which must send every message that one of them waits for.

    Raises:
        AssertionError: a program waits for a message that nobody sends (an invariant of schedules is broken).
    """
    return _Run(programs, durations, overlap).run()


class _Run:
    def __init__(self, programs: Mapping[WorkerId, Program], durations: Durations, overlap: bool) -> None:
        self._durations = durations
        self._overlap = overlap
        self._flow = Flow()
        self._links: dict[tuple[WorkerId, WorkerId], int] = {}
        self._wires: dict[tuple[WorkerId, WorkerId, int], float] = {}
        self._workers = list(programs)
        self._dues: list[list[tuple[int, int]]] = []
        """Of each worker, a group and the number of beats before its gradients are whole."""
        self._beats = [self._compile(worker, programs[worker]) for worker in self._workers]

    def _compile(self, worker: WorkerId, program: Program) -> list[Beat]:
        number_of, compute_s = self._flow._numbers.setdefault, self._durations.compute_s
        numbers = self._flow._numbers
        beats: list[Beat] = []
        dues: list[tuple[int, int]] = []
        awaited, seconds, total = -1, -1.0, 0.0
        links: dict[tuple[WorkerId, int], tuple[int, float]] = {}
        for instruction in program:
            op = instruction.op
            if op is Op.SEND_ACTIVATION or op is Op.SEND_GRADIENT:
                peer, boundary = instruction.peer, instruction.first_layer
                assert peer is not None
                key = op is Op.SEND_GRADIENT, instruction.born, instruction.microbatch, boundary, peer
                sent = number_of(key, len(numbers))
                link = links.get((peer, boundary))
                if link is None:
                    link = links[peer, boundary] = self._link(worker, peer, boundary)
                beats.append((awaited, seconds if seconds > 0.0 else 0.0, sent, *link))
                awaited, seconds = -1, -1.0
            elif op is Op.RECV_ACTIVATION or op is Op.RECV_GRADIENT:
                if awaited >= 0 or seconds >= 0:
                    beats.append((awaited, seconds if seconds > 0.0 else 0.0, -1, -1, 0.0))
                key = op is Op.RECV_GRADIENT, instruction.born, instruction.microbatch, instruction.first_layer, worker
                awaited, seconds = number_of(key, len(numbers)), -1.0
            elif op is Op.SYNC or op is Op.VOTE:
                if awaited >= 0 or seconds >= 0:
                    beats.append((awaited, seconds if seconds > 0.0 else 0.0, -1, -1, 0.0))
                    awaited, seconds = -1, -1.0
                if op is Op.SYNC:
                    dues.append((instruction.group, len(beats)))
            elif op is not Op.LOAD and op is not Op.APPLY:
                if seconds >= 0:
                    beats.append((awaited, seconds, -1, -1, 0.0))
                    awaited = -1
                seconds = compute_s(worker, instruction)
                total += seconds
        self._dues.append(dues)
        self._flow.compute_s[worker] = total
        return beats

    def _link(self, sender: WorkerId, receiver: WorkerId, boundary: int) -> tuple[int, float]:
        key = (sender, receiver, boundary)
        wire = self._wires.get(key)
        if wire is None:
            wire = self._wires[key] = self._durations.message_s(sender, receiver, boundary)
        return self._links.setdefault((sender, receiver), len(self._links)), wire

    def run(self) -> Flow:
        num_messages = len(self._flow._numbers)
        begins = [self._durations.late_s[worker] for worker in self._workers]
        clocks, starts, arrivals = advance_all(
            self._beats, num_messages, len(self._links), overlap=self._overlap, begins=begins
        )
        stuck = [
            worker
            for worker, beats, own in zip(self._workers, self._beats, clocks, strict=True)
            if len(own) <= len(beats)
        ]
        assert not stuck, f"workers {stuck} wait for messages that nobody sends"
        self._flow._starts, self._flow._arrivals = starts, arrivals
        for at, worker in enumerate(self._workers):
            self._flow.ends_s[worker] = clocks[at][-1]
            for group, beat in self._dues[at]:
                self._flow.due_s[worker, group] = clocks[at][beat]
        return self._flow


def advance_all(
    all_beats: Sequence[Sequence[Beat]], num_messages: int, num_links: int, *, overlap: bool, begins: Sequence[float]
) -> tuple[list[list[float]], list[float], list[float]]:
    """Run every worker's beats, as far as messages come: each one's clock before its first and after each beat; and
    each message's start on its link and arrival, or -1. The one hot loop.

    Args:
        all_beats: of each worker.
        num_messages: whose numbers are in them.
        num_links: likewise.
        overlap: sends do not keep the sender from going on.
        begins: when each worker does.
    """
    starts, arrivals = [-1.0] * num_messages, [-1.0] * num_messages
    waiting = [-1] * num_messages
    free = [0.0] * num_links
    all_clocks: list[list[float]] = [[begin] for begin in begins]
    ready = list(range(len(all_beats)))
    while ready:
        at = ready.pop()
        beats, clocks = all_beats[at], all_clocks[at]
        clock, begin = clocks[-1], len(clocks) - 1
        for awaited, seconds, sent, link, wire in beats[begin:] if begin else beats:
            if awaited >= 0:
                arrival = arrivals[awaited]
                if arrival > clock:
                    clock = arrival
                elif arrival < 0:
                    waiting[awaited] = at
                    break
            clock += seconds
            if sent >= 0:
                start = free[link]
                if start < clock:
                    start = clock
                starts[sent] = start
                arrivals[sent] = free[link] = end = start + wire
                if waiting[sent] >= 0:
                    ready.append(waiting[sent])
                if not overlap:
                    clock = end
            clocks.append(clock)
    return all_clocks, starts, arrivals


def _key(instruction: Instruction, receiver: WorkerId) -> _MessageKey:
    is_gradient = instruction.op in (Op.SEND_GRADIENT, Op.RECV_GRADIENT)
    return is_gradient, instruction.born, instruction.microbatch, instruction.first_layer, receiver
