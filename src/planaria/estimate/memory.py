"""Memory: what a worker's device must hold under a plan, by what holds it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from planaria.estimate.outline import shape_of
from planaria.plan.plan import Plan, Route, ScheduleKind, WorkerId
from planaria.plan.profile import LayerCost, ModelProfile
from planaria.plan.program import Instruction, Op, Program
from planaria.plan.schedule import program


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Bytes on one device at its fullest moment of a step.

    Attributes:
        parameters: of the groups that the worker owns.
        gradients: accumulators and sums of these groups.
        optimizer: state of these groups.
        activations: kept for backwards to come.
        workspace: of the layer that runs: gradients before they are added, and what kernels allocate.
        messages: that have arrived and wait.
        process: taken before there is any work.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    workspace: int
    messages: int
    process: int

    @property
    def state(self) -> int:
        return self.parameters + self.gradients + self.optimizer

    @property
    def total(self) -> int:
        return self.state + self.activations + self.workspace + self.messages + self.process


def memory_use(plan: Plan, profile: ModelProfile, worker: WorkerId) -> MemoryUse:
    """What each device of the worker's stage must hold at most. A stage of d devices spreads all but the process.

    Args:
        plan: what runs.
        profile: costs as the job runs, see `ModelProfile.recomputed`.
        worker: who owns layers in the plan.

    Raises:
        KeyError: the worker owns no layers in the plan.
    """
    instructions = program(plan, worker)
    devices = plan.devices_of[worker]
    parameters = gradients = optimizer = 0
    for number in plan.groups_of[worker]:
        group = plan.groups[number]
        layer = profile.layers[group.layers[0]]
        if layer.parameter_bytes:
            share = group.size_bytes / layer.parameter_bytes
            parameters += group.size_bytes
            gradients += round(layer.gradient_bytes * share)
            optimizer += round(layer.optimizer_bytes * share)
            if plan.redundancy is not None and plan.redundancy.runs_backwards and _is_shadowed(plan, worker, number):
                gradients += round(layer.gradient_bytes * share)  # copies are counted apart
    activations, workspace = fullest_moment(profile, instructions)
    if plan.schedule is not ScheduleKind.GPIPE:
        # What is freed and allocated in turn leaves holes; GPipe's forwards find the heap as it was a step before.
        activations = round(activations * (1.0 + profile.device.allocator_overhead))
    parts = {
        "parameters": parameters,
        "gradients": gradients,
        "optimizer": optimizer,
        "activations": activations,
        "workspace": workspace,
        "messages": _messages(profile, instructions),
    }
    return MemoryUse(
        **{name: -(-size // devices) for name, size in parts.items()}, process=profile.device.process_bytes
    )


def _is_shadowed(plan: Plan, worker: WorkerId, group: int) -> bool:
    layers = set(plan.groups[group].layers)
    return any(shadow.worker == worker and not layers.isdisjoint(shadow.layers) for shadow in plan.shadows)


def worker_memory_bytes(plan: Plan, profile: ModelProfile, worker: WorkerId) -> int:
    """The sum of `memory_use`."""
    return memory_use(plan, profile, worker).total


KnownBytes = dict[Hashable, int]
"""Of kinds of pipelines that were looked at before, what the fullest of their devices must hold."""

MOST_KNOWN = 4096


def fullest_device_bytes(plan: Plan, profile: ModelProfile, known: KnownBytes | None = None) -> int:
    """Of the worker whose devices must hold most. Workers in equal places of equal pipelines are looked at once.

    Args:
        plan: what runs.
        profile: costs as the job runs.
        known: pipelines that were looked at before, with the same profile; those looked at now are added.
    """
    is_plain = not plan.shadows and plan.redundancy is None and plan.is_apart and -1 not in plan.ways
    if known is not None and is_plain and all(len(p.owned) == len(p.stages) for p in plan.pipelines):
        return max(_of_kinds(plan, profile, known))
    return max(worker_memory_bytes(plan, profile, worker) for worker in _one_of_each(plan))


def _of_kinds(plan: Plan, profile: ModelProfile, known: KnownBytes) -> Iterator[int]:
    """Of the fullest device of each kind of pipeline, where every route keeps to one."""
    routes_of: dict[int, list[Route]] = {}
    for way, route in zip(plan.ways, plan.routes, strict=True):
        routes_of.setdefault(way, []).append(route)
    seen: set[Hashable] = set()
    for at, pipeline in enumerate(plan.pipelines):
        kind = (plan.schedule, pipeline.form(plan.devices_per_node), shape_of(routes_of.get(at, ())))
        if kind in seen:
            continue
        seen.add(kind)
        if kind not in known:
            known[kind] = max(worker_memory_bytes(plan, profile, worker) for worker in pipeline.owned)
        yield known[kind]
    while len(known) > MOST_KNOWN:
        del known[next(iter(known))]


def _one_of_each(plan: Plan) -> set[WorkerId]:
    """Of pipelines that run nothing but their own microbatches, one of each shape and number; and everybody else."""
    at_of = {stage.worker: at for at, pipeline in enumerate(plan.pipelines) for stage in pipeline.stages}
    shares: dict[int, list[int]] = {}
    mixed = {at_of[shadow.worker] for shadow in plan.shadows if shadow.worker in at_of}
    for route in plan.routes:
        passed = {at_of.get(hop.worker, -1) for hop in route.hops}
        at = min(passed)
        if len(passed) == 1 and at >= 0 and route.hops == plan.pipelines[at].stages:
            shares.setdefault(at, []).append(len(route.microbatches))
        else:
            mixed |= passed
    seen: set[object] = set()
    found = {shadow.worker for shadow in plan.shadows}
    for at, pipeline in enumerate(plan.pipelines):
        shape = tuple((stage.first_layer, stage.end_layer, stage.num_devices) for stage in pipeline.stages)
        like = (shape, tuple(shares.get(at, ())))
        if at in mixed or like not in seen:
            found |= set(pipeline.workers)
        if at not in mixed:
            seen.add(like)
    return found


def fullest_moment(profile: ModelProfile, instructions: Program) -> tuple[int, int]:
    """Bytes of activations, and of workspace, when they are largest together while a program runs on one device."""
    walk = _Walk(profile)
    for instruction in instructions:
        walk.run(instruction)
    return walk.most


class _Walk:
    """Goes through a program.

    Attributes:
        most: activations and workspace at the fullest moment so far.
    """

    def __init__(self, profile: ModelProfile) -> None:
        self._layers = profile.layers
        self._is_host = profile.device.is_host
        self._now = 0
        self.most = (0, 0)

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
                    self._now += layer.output_bytes
            case Op.BACKWARD_WEIGHT:
                self._backward(layers, top=instruction.end_layer)
                self._now -= sum(layer.output_bytes for layer in layers)
            case Op.SHADOW_FORWARD:
                self._shadow_forward(layers)
            case Op.SHADOW_BACKWARD:
                for layer in reversed(layers):
                    self._note(layer.workspace_bytes)
                    self._now -= self._left_by_shadow(layer)
            case Op.SEND_ACTIVATION | Op.SEND_GRADIENT if instruction.keeps:
                self._now += self._layers[instruction.first_layer - 1].output_bytes
                self._note(0)

    def _shadow_forward(self, layers: tuple[LayerCost, ...]) -> None:
        """What it keeps stays until the step's end, or its backward: on a device with a memory of its own, each layer's
        output; the rest goes to the host."""
        for layer in layers:
            self._note(layer.activation_bytes + layer.workspace_bytes)
            self._now += self._left_by_shadow(layer)

    def _left_by_shadow(self, layer: LayerCost) -> int:
        kept = layer.activation_bytes + layer.output_bytes
        return kept if self._is_host else min(kept, layer.output_bytes)

    def _forward(self, layers: tuple[LayerCost, ...], *, top: int, keeps: bool) -> None:
        before = self._now
        for layer in layers:
            self._now += layer.activation_bytes
            self._note(layer.workspace_bytes)
        self._now += self._output(layers[-1], top)
        if not keeps:
            self._now = before

    def _backward(self, layers: tuple[LayerCost, ...], *, top: int) -> None:
        for layer in reversed(layers):
            self._note(layer.workspace_bytes)
            self._now -= layer.activation_bytes
        self._now -= self._output(layers[-1], top)

    def _output(self, layer: LayerCost, top: int) -> int:
        """A kept forward's output is the next layer's input, and kept as that; of the stage's last layer, by itself.

        Where the backward recomputes the forward, outputs are not kept.
        """
        recomputes = layer.activation_bytes == layer.recompute_activation_bytes
        return 0 if recomputes or top == len(self._layers) else layer.output_bytes

    def _note(self, workspace: int) -> None:
        if self._now + workspace > sum(self.most):
            self.most = (self._now, workspace)


def _messages(profile: ModelProfile, instructions: Program) -> int:
    """One waiting message for each way in: the largest that comes on it."""
    ways: dict[tuple[Op, WorkerId | None], int] = {}
    for instruction in instructions:
        if instruction.op in (Op.RECV_ACTIVATION, Op.RECV_GRADIENT):
            way = (instruction.op, instruction.peer)
            ways[way] = max(ways.get(way, 0), profile.layers[instruction.first_layer - 1].output_bytes)
    return sum(ways.values())
