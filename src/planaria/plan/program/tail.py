"""The tail of a step: each group's sum as soon as its gradients are whole at a worker, then vote and apply."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planaria.plan.plan import Plan, WorkerId
from planaria.plan.program.instructions import Instruction, Op, Program
from planaria.plan.program.layer_cuts import CutOrder
from planaria.plan.program.units import Unit


def with_tail(
    body: Sequence[Instruction], order: CutOrder, plan: Plan, worker: WorkerId, rounds: Sequence[int]
) -> Program:
    """Returns a worker's program from its units' instructions, with the rounds of all groups added."""
    last = _last_counts(order.units, body)
    due: dict[int, list[int]] = {}
    for group in sorted(plan.groups_of[worker], key=lambda g: (rounds[g], g)):
        due.setdefault(max(last.get(layer, -1) for layer in plan.groups[group].layers), []).append(group)

    def sums(at: int) -> Iterator[Instruction]:
        for group in due.get(at, ()):
            yield Instruction(op=Op.SYNC, group=group, epoch=plan.sync_epochs[group], round=rounds[group])

    instructions = [*sums(-1)]
    done = 0
    for at in sorted(due.keys() - {-1}):
        instructions += body[done : at + 1]
        instructions += sums(at)
        done = at + 1
    instructions += body[done:]
    instructions += [Instruction(op=Op.VOTE, epoch=plan.generation), Instruction(op=Op.APPLY)]
    return tuple(instructions)


def _last_counts(units: Sequence[Unit], body: Sequence[Instruction]) -> dict[int, int]:
    """Returns, for each layer that is counted here, the place of its last count."""
    own = {id(unit.hop): unit.hop for unit in units if not unit.phase.is_shadow}
    num_layers = len({layer for hop in own.values() for layer in hop.counted})
    last: dict[int, int] = {}
    for at in range(len(body) - 1, -1, -1):
        if len(last) == num_layers:
            break
        for layer in body[at].counted if body[at].op is not Op.SHADOW_BACKWARD else ():
            last.setdefault(layer, at)
    return last
