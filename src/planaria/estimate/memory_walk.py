"""A walk through a worker's instructions, with what it needs of its devices' memory on the way."""

from __future__ import annotations

from planaria.plan.costs.byte_counts import message_bytes
from planaria.plan.costs.model_profile import LayerCost, ModelProfile
from planaria.plan.plan import ScheduleKind, WorkerId
from planaria.plan.program.instructions import Instruction, Op, Program

Stretch = tuple[int, int, int]
"""A stretch of instructions: activations, more than before it, and workspace at its fullest moment; and activations,
more than before, after it."""

Moment = tuple[int, int, int]
"""Activations, workspace and messages of a worker, at the fullest moment; before they are spread over its devices."""


def stretch_of(profile: ModelProfile, instructions: Program) -> Stretch:
    """Returns the bytes of these instructions, as a `Stretch`, wherever in a program they are."""
    walk = Walk(profile, low=True)
    for instruction in instructions:
        walk.run(instruction)
    return (*walk.most, walk.now)


class Walk:
    """A walk through a program.

    Attributes:
        now: bytes of activations at this moment.
        most: activations and workspace at the fullest moment so far.
    """

    def __init__(self, profile: ModelProfile, *, low: bool = False) -> None:
        """Begins the walk. `low`: it begins in the middle of a program, so any moment may be the fullest so far."""
        self._profile = profile
        self._layers = profile.layers
        self._is_host = profile.device.is_host
        self.now = 0
        self.most = (-(1 << 62), 0) if low else (0, 0)

    def pass_through(self, stretch: Stretch) -> None:
        """Passes through instructions that were gone through before."""
        more, workspace, after = stretch
        if self.now + more + workspace > sum(self.most):
            self.most = (self.now + more, workspace)
        self.now += after

    def run(self, instruction: Instruction) -> None:
        layers = self._layers[max(instruction.first_layer, 0) : max(instruction.end_layer, 0)]
        match instruction.op:
            case Op.FORWARD:
                self._forward(layers, top=instruction.end_layer, keeps=instruction.keeps)
            case Op.BACKWARD:
                self._backward(layers, top=instruction.end_layer)
            case Op.BACKWARD_INPUT:
                # What the weights' gradients need stays: the activations, and each output's gradient.
                for layer in reversed(layers):
                    self._note(layer.workspace_bytes)
                    self.now += layer.output_bytes
            case Op.BACKWARD_WEIGHT:
                self._backward(layers, top=instruction.end_layer)
                self.now -= sum(layer.output_bytes for layer in layers)
            case Op.SHADOW_FORWARD:
                self._shadow_forward(layers)
            case Op.SHADOW_BACKWARD:
                for layer in reversed(layers):
                    self._note(layer.workspace_bytes)
                    self.now -= self._left_by_shadow(layer)
            case Op.SEND_ACTIVATION | Op.SEND_GRADIENT if instruction.keeps:
                self.now += message_bytes(self._profile, instruction.first_layer)
                self._note(0)

    def _shadow_forward(self, layers: tuple[LayerCost, ...]) -> None:
        """Adds a shadow's forward; what it keeps stays until the step's end, or its backward: on a device with memory
        of its own, each layer's output; the rest goes to the host."""
        for layer in layers:
            self._note(layer.activation_bytes + layer.workspace_bytes)
            self.now += self._left_by_shadow(layer)

    def _left_by_shadow(self, layer: LayerCost) -> int:
        kept = layer.activation_bytes + layer.output_bytes
        return kept if self._is_host else min(kept, layer.output_bytes)

    def _forward(self, layers: tuple[LayerCost, ...], *, top: int, keeps: bool) -> None:
        before = self.now
        for layer in layers:
            self.now += layer.activation_bytes
            self._note(layer.workspace_bytes)
        self.now += self._output(layers[-1], top)
        if not keeps:
            self.now = before

    def _backward(self, layers: tuple[LayerCost, ...], *, top: int) -> None:
        for layer in reversed(layers):
            self._note(layer.workspace_bytes)
            self.now -= layer.activation_bytes
        self.now -= self._output(layers[-1], top)

    def _output(self, layer: LayerCost, top: int) -> int:
        """Returns bytes of a kept forward's output: the stage's last layer's; others are the next layer's input.

        Where the backward recomputes the forward, outputs are not kept.
        """
        recomputes = layer.activation_bytes == layer.recompute_activation_bytes
        return 0 if recomputes or top == len(self._layers) else layer.output_bytes

    def _note(self, workspace: int) -> None:
        if self.now + workspace > sum(self.most):
            self.most = (self.now, workspace)


def add_messages(ways: dict[tuple[Op, WorkerId | None], int], profile: ModelProfile, instructions: Program) -> None:
    """Adds one waiting message for each incoming connection: the largest that comes on it."""
    for instruction in instructions:
        if instruction.op in (Op.RECV_ACTIVATION, Op.RECV_GRADIENT):
            way = (instruction.op, instruction.peer)
            ways[way] = max(ways.get(way, 0), message_bytes(profile, instruction.first_layer))


def with_holes(schedule: ScheduleKind, profile: ModelProfile, most: tuple[int, int], messages: int) -> Moment:
    """Returns the fullest moment with what the allocator's holes add to it."""
    activations, workspace = most
    if schedule is not ScheduleKind.GPIPE:
        # What is freed and allocated in turn leaves holes; GPipe's forwards find the heap as it was a step before.
        activations = round(activations * (1.0 + profile.device.allocator_overhead))
    return activations, workspace, messages
