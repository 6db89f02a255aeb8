"""Memory: what a worker's device must hold under a plan, by what holds it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial

from planaria.plan.plan import Plan, ScheduleKind, WorkerId
from planaria.plan.profile import LayerCost, ModelProfile
from planaria.plan.program import Instruction, Op, Program
from planaria.plan.schedule import orders, paths
from planaria.plan.work import Phase, Unit


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
    return _use(plan, profile, worker, _moment(plan, profile, worker))


_Moment = tuple[int, int, int]
"""Activations, workspace and messages of a worker, at the fullest moment; before they are spread over its devices."""


def _moment(plan: Plan, profile: ModelProfile, worker: WorkerId) -> _Moment:
    """The units of one phase of a leg differ in the microbatch alone, so the instructions of each are walked through
    once."""
    order = orders(plan, [worker])[worker]
    walk = _Walk(profile)
    stretches: dict[tuple[int, Phase, bool], _Stretch] = {}
    ways: dict[tuple[Op, WorkerId | None], int] = {}

    def note(units: Sequence[Unit]) -> None:
        for unit in units:
            phase, leg, microbatch, _ = unit
            key = id(leg), phase, (leg.born, microbatch, phase) in order.cut
            stretch = stretches.get(key)
            if stretch is None:
                instructions = tuple(order.instructions(unit))
                stretch = stretches[key] = _stretch(profile, instructions)
                _add_messages(ways, profile, instructions)
            walk.pass_through(stretch)

    note(order.units[: order.end])
    for instruction in order.tail():
        walk.run(instruction)
    note(order.units[order.own_end :])
    activations, workspace = walk.most
    if plan.schedule is not ScheduleKind.GPIPE:
        # What is freed and allocated in turn leaves holes; GPipe's forwards find the heap as it was a step before.
        activations = round(activations * (1.0 + profile.device.allocator_overhead))
    return activations, workspace, sum(ways.values())


def _use(plan: Plan, profile: ModelProfile, worker: WorkerId, moment: _Moment) -> MemoryUse:
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
    activations, workspace, messages = moment
    parts = {
        "parameters": parameters,
        "gradients": gradients,
        "optimizer": optimizer,
        "activations": activations,
        "workspace": workspace,
        "messages": messages,
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


def fullest_device_bytes(plan: Plan, profile: ModelProfile) -> int:
    """Of the worker whose devices must hold most.

    What microbatches need follows from the ways they take, and is remembered: of pipelines that run nothing but their
    own, for each kind of them, wherever they are; of others, for all ways together. State is added to it.
    """
    moments: dict[WorkerId, _Moment] = {}
    kinds = _kinds(plan) if plan.redundancy is None else _kinds_of_rings(plan)
    for workers, kind in kinds:
        known = _KINDS.find((profile, kind), partial(_moments, plan, profile, workers))
        moments |= zip(workers, known, strict=True)
    others = sorted({hop.worker for route in plan.routes for hop in route.hops} - moments.keys())
    if others:
        ways = (profile, plan.schedule, plan.spare_in_flight, plan.layer_units, plan.redundancy, _ways(plan))
        known = _MIXED.find(ways, partial(_moments, plan, profile, others))
        moments |= zip(others, known, strict=True)
    return max(_use(plan, profile, worker, moments.get(worker, _IDLE)).total for worker in plan.workers)


def _moments(plan: Plan, profile: ModelProfile, workers: Sequence[WorkerId]) -> tuple[_Moment, ...]:
    return tuple(_moment(plan, profile, worker) for worker in workers)


_IDLE: _Moment = (0, 0, 0)
"""Of a worker through whom no microbatch goes."""


class _Remembered:
    """Moments that were found out, as many as that."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[Hashable, tuple[_Moment, ...]] = {}

    def find(self, key: Hashable, find_out: Callable[[], tuple[_Moment, ...]]) -> tuple[_Moment, ...]:
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = find_out()
            while len(self._known) > self._most:
                del self._known[next(iter(self._known))]
        return found


_KINDS, _MIXED = _Remembered(1024), _Remembered(32)


def _ways(plan: Plan) -> Hashable:
    """Where microbatches go. Of generations, only their order counts."""
    turn_of = {born: turn for turn, born in enumerate(sorted({route.born for route in plan.routes}))}
    routes = tuple((turn_of[r.born], r.hops, r.microbatches, r.counted, r.reached) for r in plan.routes)
    return plan.pipelines, routes, () if plan.redundancy is None else plan.shadows


_Kind = tuple[Hashable, ...]


def _kinds_of_rings(plan: Plan) -> list[tuple[tuple[WorkerId, ...], _Kind]]:
    """Likewise of pipelines whose workers compute what they shadow; none where a step is gone on with."""
    found: list[tuple[tuple[WorkerId, ...], _Kind]] = []
    for path in paths(plan):
        routes = (*path.routes, *path.following)
        if len(path.routes) > 1 or len(path.following) > 1 or any(route.reached is not None for route in routes):
            continue
        kind = (
            plan.schedule,
            plan.redundancy,
            tuple((hop.first_layer, hop.end_layer) for hop in path.hops),
            tuple(worker is not None for worker in path.stand_ins),
            tuple((len(route.microbatches), route.counted) for route in routes),
        )
        found.append((tuple(hop.worker for hop in path.hops), kind))
    return found


def _kinds(plan: Plan) -> list[tuple[tuple[WorkerId, ...], _Kind]]:
    """Of pipelines that run whole steps of their own microbatches alone, by one route: all that their memory depends
    on, beside the state."""
    at_of: dict[WorkerId, int] = {}
    others: set[int] = set()
    for at, pipeline in enumerate(plan.pipelines):
        for worker in pipeline.workers:
            if worker in at_of:
                others |= {at, at_of[worker]}
            at_of[worker] = at
    own: dict[int, _Kind] = {}
    for route in plan.routes:
        passed = {at_of.get(hop.worker, -1) for hop in route.hops}
        at = min(passed)
        is_own = len(passed) == 1 and at >= 0 and route.hops == plan.pipelines[at].stages
        if is_own and route.reached is None and at not in own:
            own[at] = (len(route.microbatches), route.counted)
        else:
            others |= passed
    return [
        (
            plan.pipelines[at].workers,
            (plan.schedule, tuple((stage.first_layer, stage.end_layer) for stage in plan.pipelines[at].stages), kind),
        )
        for at, kind in own.items()
        if at not in others
    ]


def fullest_moment(profile: ModelProfile, instructions: Program) -> tuple[int, int]:
    """Bytes of activations, and of workspace, when they are largest together while a program runs on one device."""
    walk = _Walk(profile)
    for instruction in instructions:
        walk.run(instruction)
    return walk.most


_Stretch = tuple[int, int, int]
"""Of some instructions: activations, more than before them, and workspace at their fullest moment; and activations,
more than before, after them."""


def _stretch(profile: ModelProfile, instructions: Program) -> _Stretch:
    walk = _Walk(profile, low=True)
    for instruction in instructions:
        walk.run(instruction)
    return (*walk.most, walk.now)


class _Walk:
    """Goes through a program.

    Attributes:
        now: activations.
        most: activations and workspace at the fullest moment so far.
    """

    def __init__(self, profile: ModelProfile, *, low: bool = False) -> None:
        """`low`: it begins in the middle of a program, so any moment may be the fullest so far."""
        self._layers = profile.layers
        self._is_host = profile.device.is_host
        self.now = 0
        self.most = (-(1 << 62), 0) if low else (0, 0)

    def pass_through(self, stretch: _Stretch) -> None:
        """Instructions that were gone through before."""
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
                self.now += self._layers[instruction.first_layer - 1].output_bytes
                self._note(0)

    def _shadow_forward(self, layers: tuple[LayerCost, ...]) -> None:
        """What it keeps stays until the step's end, or its backward: on a device with a memory of its own, each layer's
        output; the rest goes to the host."""
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
        """A kept forward's output is the next layer's input, and kept as that; of the stage's last layer, by itself.

        Where the backward recomputes the forward, outputs are not kept.
        """
        recomputes = layer.activation_bytes == layer.recompute_activation_bytes
        return 0 if recomputes or top == len(self._layers) else layer.output_bytes

    def _note(self, workspace: int) -> None:
        if self.now + workspace > sum(self.most):
            self.most = (self.now, workspace)


def _add_messages(ways: dict[tuple[Op, WorkerId | None], int], profile: ModelProfile, instructions: Program) -> None:
    """One waiting message for each way in: the largest that comes on it."""
    for instruction in instructions:
        if instruction.op in (Op.RECV_ACTIVATION, Op.RECV_GRADIENT):
            way = (instruction.op, instruction.peer)
            ways[way] = max(ways.get(way, 0), profile.layers[instruction.first_layer - 1].output_bytes)
