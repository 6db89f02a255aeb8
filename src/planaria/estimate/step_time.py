"""Step time: an event simulation of the workers' programs, in topological order.

A worker computes one thing at a time. Sends and syncs run beside its compute: messages of one sender to one
receiver go one after another, and so do the syncs that a worker is in. What the simulation does not know:
switches shared by several links, and compute slowed by communication.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from planaria.plan.plan import Plan, WorkerId
from planaria.plan.profile import ModelProfile
from planaria.plan.program import Instruction, Op
from planaria.plan.schedule import programs

Span = tuple[Instruction, float, float]
"""An instruction, and the seconds from the step's beginning at which it starts and ends."""

_MessageKey = tuple[bool, int, int, int, WorkerId]
"""Of a message: is it a gradient, born, microbatch, boundary, receiver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What happens when in one step.

    Attributes:
        step_time_s: from the beginning to the last worker's apply.
        spans: for each worker, its instructions in program order. A send's span is its time on the link, a
            receive's the wait for the message, a sync's the sum itself; sends and syncs overlap with compute.
    """

    step_time_s: float
    spans: Mapping[WorkerId, tuple[Span, ...]]

    @property
    def longest_instruction_s(self) -> float:
        """Seconds of the longest forward, backward or sum."""
        computing = (Op.FORWARD, Op.BACKWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT, Op.SYNC)
        spans = (span for worker in self.spans.values() for span in worker if span[0].op in computing)
        return max((end - start for _, start, end in spans), default=0.0)


def step_time_s(plan: Plan, profile: ModelProfile) -> float:
    """Estimated seconds of a step under the plan."""
    return simulate(plan, profile).step_time_s


def simulate(plan: Plan, profile: ModelProfile) -> Timeline:
    """Run every worker's program in virtual time.

    Raises:
        AssertionError: a program waits for a message that nobody sends (an invariant of schedules is broken).
    """
    return _Simulation(plan, profile).run()


class _Simulation:
    def __init__(self, plan: Plan, profile: ModelProfile) -> None:
        self._plan = plan
        self._profile = profile
        self._programs = programs(plan)
        self._at = dict.fromkeys(self._programs, 0)
        self._clock = dict.fromkeys(self._programs, 0.0)
        self._arrivals: dict[_MessageKey, float] = {}
        self._waiting: dict[_MessageKey, WorkerId] = {}
        self._link_free: dict[tuple[WorkerId, WorkerId], float] = {}
        self._due: dict[tuple[WorkerId, int], float] = {}
        self._spans: dict[WorkerId, list[Span]] = {worker: [] for worker in self._programs}

    def run(self) -> Timeline:
        ready = deque(sorted(self._programs))
        while ready:
            self._advance(ready.popleft(), ready)
        stuck = [worker for worker, program in self._programs.items() if self._at[worker] < len(program)]
        assert not stuck, f"workers {stuck} wait for messages that nobody sends"
        syncs = self._run_syncs()
        votes = {
            worker: max([self._clock[worker], *(end for (w, _), (_, end) in syncs.items() if w == worker)])
            for worker in self._programs
        }
        end = max(votes.values())
        return Timeline(
            step_time_s=end,
            spans={worker: self._final_spans(worker, syncs, votes[worker], end) for worker in self._programs},
        )

    def _advance(self, worker: WorkerId, ready: deque[WorkerId]) -> None:
        """Run the worker until its end or a receive whose message is not sent yet."""
        program = self._programs[worker]
        while self._at[worker] < len(program):
            instruction = program[self._at[worker]]
            start = end = self._clock[worker]
            match instruction.op:
                case Op.FORWARD | Op.BACKWARD:
                    end = self._clock[worker] = start + self._compute_s(instruction)
                case Op.SEND_ACTIVATION | Op.SEND_GRADIENT:
                    start, end = self._send(worker, instruction, ready)
                case Op.RECV_ACTIVATION | Op.RECV_GRADIENT:
                    key = _key(instruction, worker)
                    if key not in self._arrivals:
                        self._waiting[key] = worker
                        return
                    end = self._clock[worker] = max(start, self._arrivals[key])
                case Op.SYNC:
                    self._due[worker, instruction.group] = start
                case Op.LOAD | Op.VOTE | Op.APPLY:
                    pass
            self._spans[worker].append((instruction, start, end))
            self._at[worker] += 1

    def _compute_s(self, instruction: Instruction) -> float:
        layers = self._profile.layers[instruction.first_layer : instruction.end_layer]
        if instruction.op is Op.FORWARD:
            return sum(layer.on(1).forward_s for layer in layers)
        return sum(layer.on(1).backward_s for layer in layers)

    def _send(self, worker: WorkerId, instruction: Instruction, ready: deque[WorkerId]) -> tuple[float, float]:
        assert instruction.peer is not None
        link = (worker, instruction.peer)
        start = max(self._clock[worker], self._link_free.get(link, 0.0))
        size = self._profile.layers[instruction.first_layer - 1].output_bytes
        end = self._link_free[link] = start + self._profile.links.between_nodes.time_s(size)
        key = _key(instruction, instruction.peer)
        self._arrivals[key] = end
        if key in self._waiting:
            ready.append(self._waiting.pop(key))
        return start, end

    def _run_syncs(self) -> dict[tuple[WorkerId, int], tuple[float, float]]:
        """Start and end of each group's sum at each of its owners; a worker's go in order of rounds."""
        rounds = {
            instruction.group: instruction.round
            for program in self._programs.values()
            for instruction in program
            if instruction.op is Op.SYNC
        }
        free = dict.fromkeys(self._programs, 0.0)
        times: dict[tuple[WorkerId, int], tuple[float, float]] = {}
        for group in sorted(rounds, key=lambda g: (rounds[g], g)):
            owners = self._plan.owners_of[group]
            start = max(max(self._due[worker, group], free[worker]) for worker in owners)
            size = self._profile.groups[group].size_bytes
            end = start + (len(owners) - 1) * self._profile.links.between_nodes.time_s(size)
            for worker in owners:
                free[worker] = end
                times[worker, group] = start, end
        return times

    def _final_spans(
        self,
        worker: WorkerId,
        syncs: Mapping[tuple[WorkerId, int], tuple[float, float]],
        vote: float,
        end: float,
    ) -> tuple[Span, ...]:
        spans: list[Span] = []
        for instruction, start, stop in self._spans[worker]:
            if instruction.op is Op.SYNC:
                start, stop = syncs[worker, instruction.group]
            elif instruction.op is Op.VOTE:
                start = stop = vote
            elif instruction.op is Op.APPLY:
                start = stop = end
            spans.append((instruction, start, stop))
        return tuple(spans)


def _key(instruction: Instruction, receiver: WorkerId) -> _MessageKey:
    is_gradient = instruction.op in (Op.SEND_GRADIENT, Op.RECV_GRADIENT)
    return is_gradient, instruction.born, instruction.microbatch, instruction.first_layer, receiver
