"""Memory: what a worker's device must hold under a plan."""

from __future__ import annotations

from planaria.plan.plan import Plan, WorkerId
from planaria.plan.profile import ModelProfile
from planaria.plan.program import Op
from planaria.plan.schedule import program


def worker_memory_bytes(plan: Plan, profile: ModelProfile, worker: WorkerId) -> int:
    """Peak bytes on the worker's device: state of its groups, and the activations kept for backwards to come.

    Allocator overhead and the library's own workspace are not counted.
    """
    state = sum(profile.group_state_bytes[group] for group in plan.groups_of[worker])
    now = peak = 0
    for instruction in program(plan, worker):
        layers = profile.layers[max(instruction.first_layer, 0) : max(instruction.end_layer, 0)]
        activations = sum(layer.activation_bytes for layer in layers)
        if instruction.op is Op.FORWARD:
            peak = max(peak, now + activations)
            now += activations if instruction.keeps else 0
        elif instruction.op is Op.BACKWARD:
            now -= activations
    return state + peak
