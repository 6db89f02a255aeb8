"""The remainder of a step: how long it takes from now on, given the plans under which it has been done so far.

Nobody asks the workers how far they are. What they have done is what the simulation of their programs says that they
have, under one plan after the other; of what a plan keeps, that is not done again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planaria.estimate.conditions import Conditions
from planaria.estimate.durations import Durations
from planaria.estimate.simulation.simulation import run_programs
from planaria.estimate.step_time import end_s
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.plan import Plan, WorkerId
from planaria.plan.program.instructions import COMPUTING, Instruction, Op
from planaria.plan.program.programs import programs

_SENDS = {Op.SEND_ACTIVATION: Op.RECV_ACTIVATION, Op.SEND_GRADIENT: Op.RECV_GRADIENT}

_Message = tuple[Op, int, int, int, WorkerId]
"""A message: the receive, born, microbatch, boundary, receiver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInterval:
    """The part of a step that was done under one plan.

    Attributes:
        plan: the plan.
        seconds: for which it was in force, on machines as fast as the profile says.
    """

    plan: Plan
    seconds: float


def num_units(plan: Plan) -> int:
    """Returns the units of work (a phase of a hop for one microbatch), which tell the cost of simulating a step."""
    return 3 * sum(len(route.hops) * len(route.microbatches) for route in plan.routes)


class StepProgress:
    """The progress of a step.

    Args:
        profile: what layers and links cost.
        conditions: what is assumed of machines beside the profile.
        so_far: the plans of the step, in order; none: nothing is done.
    """

    def __init__(self, profile: ModelProfile, conditions: Conditions, so_far: Sequence[PlanInterval] = ()) -> None:
        self._profile = profile
        self._conditions = conditions
        self._done: dict[WorkerId, set[Instruction]] = {}
        for stretch in so_far:
            self._advance(stretch)

    def rest_s(self, plan: Plan) -> float:
        """Returns the seconds until the step is done, if it is finished under this plan from now on."""
        return end_s(plan, self._left(plan), Durations(plan, self._profile, self._conditions), self._conditions)

    def busy_s(self, plan: Plan) -> dict[WorkerId, float]:
        """Returns the seconds that each worker has still to compute under the plan."""
        durations = Durations(plan, self._profile, self._conditions)
        return {
            worker: sum(durations.compute_s(worker, i) for i in program if i.op in COMPUTING)
            for worker, program in self._left(plan).items()
        }

    def _advance(self, stretch: PlanInterval) -> None:
        durations = Durations(stretch.plan, self._profile, self._conditions)
        left = self._left(stretch.plan)
        times = run_programs(left, durations, overlap=self._conditions.overlap)
        for worker, program in left.items():
            done = self._done.setdefault(worker, set())
            clock = 0.0
            for instruction in program:
                if instruction.op in COMPUTING:
                    clock += durations.compute_s(worker, instruction)
                elif instruction.op in _SENDS:
                    assert instruction.peer is not None
                    if not self._conditions.overlap:
                        clock = max(clock, times.arrival_s(instruction, instruction.peer))
                elif instruction.op in _SENDS.values():
                    clock = max(clock, times.arrival_s(instruction, worker))
                elif instruction.op is not Op.LOAD:
                    continue
                if clock > stretch.seconds:
                    break
                done.add(instruction)

    def _left(self, plan: Plan) -> dict[WorkerId, tuple[Instruction, ...]]:
        """Returns what is left of the plan's programs. What was sent has come."""
        nothing: set[Instruction] = set()
        left = {
            worker: [i for i in program if i not in self._done.get(worker, nothing)]
            for worker, program in programs(plan).items()
        }
        coming = {_sent(i) for program in left.values() for i in program if i.op in _SENDS}
        return {
            worker: tuple(i for i in program if i.op not in _SENDS.values() or _received(i, worker) in coming)
            for worker, program in left.items()
        }


def _sent(instruction: Instruction) -> _Message:
    assert instruction.peer is not None
    return (
        _SENDS[instruction.op],
        instruction.born,
        instruction.microbatch,
        instruction.first_layer,
        instruction.peer,
    )


def _received(instruction: Instruction, worker: WorkerId) -> _Message:
    return instruction.op, instruction.born, instruction.microbatch, instruction.first_layer, worker
