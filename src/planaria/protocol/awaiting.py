"""Awaiting: which instructions wait for state that is on its way to a worker; all others run beside it.

A layer computes with its parameters, so that needs them. A vote needs all that the plan gives the worker: once the
step is committed, the source is free to change what it has sent. Sends, receipts and the worker's own part of a sum,
which is empty for what it does not hold, need nothing. Pure; the real worker and the simulated one keep to it alike.
"""

from __future__ import annotations

from collections.abc import Collection

from planaria.plan.program.instructions import COMPUTING, Instruction, Op


def needs_state(instruction: Instruction, layers: Collection[int]) -> bool:
    """Whether it waits for state of these layers' groups that is on its way."""
    if instruction.op is Op.VOTE:
        return True
    if instruction.op not in COMPUTING:
        return False
    return any(instruction.first_layer <= layer < instruction.end_layer for layer in layers)
