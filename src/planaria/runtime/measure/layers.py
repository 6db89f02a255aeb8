"""Measures a model's layers: seconds and bytes of each, with the worker's own compute and accumulators.

Layers of one kind (the same module on the same shapes) are measured once.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
import torch
from torch import nn

from planaria.job.errors import UserError
from planaria.job.sections.train import TrainSection
from planaria.model.model import Batch, Model, Tensors
from planaria.model.training.optimizer import value_bytes
from planaria.plan.costs.model_profile import LayerCost, LayerTimes, LinkCost
from planaria.plan.quantities import size
from planaria.protocol.worker.progress import Work
from planaria.runtime.machine.limits import memory_bytes, num_cores
from planaria.runtime.measure.allocations import follow_allocations
from planaria.runtime.measure.clock import compute_now
from planaria.runtime.measure.exchanges import measure_exchanges
from planaria.runtime.measure.memory import device_bytes, give_back, held_bytes
from planaria.runtime.thresholds import (
    ALLOCATOR_ROUNDS,
    ENOUGH_S,
    LEAST_BACKWARD_SHARE,
    LEAST_SEEN_BYTES,
    MEASURE_REPEATS,
    MEASURED_PARAMETERS,
    MOST_OVERHEAD,
    ROWS_LOOKED_AHEAD,
)
from planaria.runtime.worker.compute.device.opening import device_at
from planaria.runtime.worker.compute.holdings import Holdings
from planaria.runtime.worker.compute.layers import Compute, LayerFailed
from planaria.runtime.worker.compute.weight_copies import copies_of

STAGE_LAYERS = 3
MOST_STAGE_LAYERS = 8
IN_FLIGHT = (1, 3)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Measured:
    """The measurements of one kind of layer.

    Attributes:
        layer: the first of the kind.
        inputs: what it was measured on.
        gradients: the gradients of its outputs.
        times: on one device, see `split_backward`; and on several that share a microbatch.
        activation_bytes: kept between forward and backward, inputs included.
        allocated_bytes: allocated by a forward and kept, outputs included.
        workspace_bytes: beside what is kept, at the peak.
        copy_bytes: copies of weights, made once for all microbatches.
        num_parameters: that are trained.
    """

    layer: int
    inputs: Tensors
    gradients: Tensors
    times: tuple[LayerTimes, ...]
    activation_bytes: int
    allocated_bytes: int
    workspace_bytes: int
    copy_bytes: int
    num_parameters: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredLayers:
    """The measurements of a model's layers.

    Attributes:
        costs: of each.
        allocator_overhead: see `DeviceKind`.
        make_stage: makes a stage of the commonest kind of layer; what it returns computes a microbatch, forwards and
            backwards.
        stage: the layers of that.
    """

    costs: tuple[LayerCost, ...]
    allocator_overhead: float
    make_stage: Callable[[], Callable[[], None]]
    stage: tuple[int, ...]


class CountedMates:
    """Stands in for the other devices of a stage: what a layer computes of its shards is measured, and what it would
    exchange is counted.

    Args:
        number: of devices that share a microbatch.
        link: between them.

    Attributes:
        place: the first device's.
    """

    place = 0

    def __init__(self, number: int, link: LinkCost) -> None:
        self.number = number
        self._link = link
        self._exchanged_s = 0.0

    def add_up(self, work: Work, name: int, part: torch.Tensor, among: int) -> torch.Tensor:
        self._exchanged_s += (among.bit_length() - 1) * self._link.time_s(part.nbytes)
        return part

    def exchanged_s(self) -> float:
        """Returns the seconds that messages would have taken since it was last asked."""
        seconds, self._exchanged_s = self._exchanged_s, 0.0
        return seconds

    def forget(self, keep: Callable[[Work, int], bool]) -> None:
        """Has nothing to forget."""


def measure_layers(
    model: Model,
    train: TrainSection,
    device: torch.device,
    batch: Batch,
    shared_with: Sequence[CountedMates] = (),
) -> MeasuredLayers:
    """Measures each layer on what the one before gave.

    Args:
        model: whose layers.
        train: its numbers.
        device: where they run.
        batch: a microbatch.
        shared_with: the others, for each number of devices that may share a microbatch.

    Raises:
        LayerFailed: a layer of the user's raises.
        MicrobatchTooLarge: a layer needs more for one than the device has.
    """
    plain = msgspec.structs.replace(train, activation_checkpointing=False)
    return _Meter(model, plain, device, batch, shared_with).measured()


class MicrobatchTooLarge(UserError):
    """A layer needs more for one microbatch than its device has."""


class _Meter:
    def __init__(
        self, model: Model, train: TrainSection, device: torch.device, batch: Batch, mates: Sequence[CountedMates]
    ) -> None:
        self._mates = mates
        self._model = model
        self._train = train
        self._device = device
        self._batch = batch
        self._holdings = Holdings(model, train, device_at(device))
        self._seen: dict[object, _Measured] = {}
        self._kinds: list[_Measured] = []
        self._looked_at: set[tuple[str, str]] = set()

    def measured(self) -> MeasuredLayers:
        tensors = tuple(self._batch[name] for name in self._model.inputs)
        costs = []
        for layer, name in enumerate(self._model.layer_names):
            module = self._hold(layer)
            cost, tensors = self._cost(layer, name, module, tensors)
            costs.append(cost)
            self._holdings.forget_all()
        overhead, factor = self._overhead()
        held = tuple(
            msgspec.structs.replace(cost, workspace_bytes=round(factor * cost.workspace_bytes)) for cost in costs
        )
        return MeasuredLayers(costs=held, allocator_overhead=overhead, make_stage=self._make_stage, stage=self._stage)

    def _make_stage(self) -> Callable[[], None]:
        self._hold(*self._stage)
        return partial(self._run_stage, self._commonest, self._stage, 1, rounds=0)

    @property
    def _stage(self) -> tuple[int, ...]:
        """Layers of the commonest kind: of small ones so many that caches hold no more of them than in a step."""
        common = self._commonest
        alike = tuple(layer for layer, kind in enumerate(self._kinds) if kind is common)
        return alike[: min(MOST_STAGE_LAYERS, max(1, MEASURED_PARAMETERS // max(1, common.num_parameters)))]

    @property
    def _commonest(self) -> _Measured:
        """The commonest kind of layer."""
        return max(self._kinds, key=lambda kind: (self._kinds.count(kind), kind.activation_bytes))

    def _overhead(self) -> tuple[float, float]:
        """Returns what the allocator holds beyond what it is asked for, because of holes: a share of activations, and a
        factor for workspaces.

        The commonest kind of layer runs as a stage of such layers would, 1F1B with few and then with more microbatches
        in flight, on a heap that was emptied before. What grows with the microbatches belongs to the activations.
        """
        common = self._commonest
        self._hold(common.layer)
        layers = (common.layer,) * STAGE_LAYERS
        self._run_stage(common, layers, 1, rounds=0)  # to make its accumulators
        few, many = (STAGE_LAYERS * in_flight * common.allocated_bytes for in_flight in IN_FLIGHT)
        if few < LEAST_SEEN_BYTES or not give_back(self._device):
            self._holdings.forget_all()
            return 0.0, 1.0
        before = held_bytes(self._device)
        held = []
        for in_flight in IN_FLIGHT:
            self._run_stage(common, layers, in_flight, rounds=ALLOCATOR_ROUNDS)
            held.append(held_bytes(self._device) - before)
        self._holdings.forget_all()
        share = min(max((held[1] - held[0]) / (many - few), 1.0), MOST_OVERHEAD)
        beside = held[0] - share * few - common.copy_bytes
        return share - 1.0, max(beside / max(common.workspace_bytes, 1), 1.0)

    def _run_stage(self, kind: _Measured, layers: Sequence[int], in_flight: int, *, rounds: int) -> None:
        compute = self._holdings.compute
        deadline = time.perf_counter() + ENOUGH_S
        for microbatch in range(in_flight + rounds):
            for number, layer in enumerate(layers):
                compute.forward(1, (microbatch, number), layer, kind.inputs, self._batch, keep=True)
            oldest = microbatch - in_flight + 1
            for number, layer in reversed(list(enumerate(layers))) if oldest >= 0 else ():
                compute.backward(1, (oldest, number), layer, kind.gradients, counted=True)
            if oldest > 0 and time.perf_counter() > deadline:
                break
        compute.forget(lambda work: False)

    def _hold(self, *layers: int) -> nn.Module:
        """Makes what the layers' owner holds: replicas of their groups, and modules bound to them. Returns the last."""
        for group, spec in enumerate(self._model.groups):
            if not set(layers).isdisjoint(spec.layers):
                replica = self._holdings.new_replica(group)
                replica.initialise(self._model.initial_state(group, self._train.seed))
                self._holdings.put(group, replica)
        self._holdings.begin_step((0,) * len(self._model.groups))
        for layer in layers:
            module = self._model.build_layer(layer)
            self._holdings.compute.add_layer(layer, module, self._holdings.views(layer))
        return module

    def _check_room(self, layer: int, module: nn.Module, inputs: Tensors) -> None:
        """Refuses microbatches of which this layer's inputs, its outputs and their gradients alone are too large for
        the device: what few samples take tells it. Raises MicrobatchTooLarge."""
        rows = self._train.microbatch
        kind = repr(module), str([tuple(tensor.shape) for tensor in inputs])
        if rows <= ROWS_LOOKED_AHEAD or kind in self._looked_at:
            return
        self._looked_at.add(kind)
        batch = {name: _few(tensor, rows) for name, tensor in self._batch.items()}
        few = tuple(_few(tensor, rows) for tensor in inputs)
        try:
            outputs, _ = self._holdings.compute.forward(1, (0, 0), layer, few, batch, keep=False)
        except LayerFailed:
            return  # it takes whole microbatches alone
        grown = sum(tensor.nbytes for tensor in outputs) * rows // ROWS_LOOKED_AHEAD
        needed = sum(tensor.nbytes for tensor in inputs) + 2 * grown
        there = device_bytes(self._device) or memory_bytes()
        if needed > there:
            raise MicrobatchTooLarge(
                f"train.microbatch = {rows}: {self._model.layer_names[layer]} alone needs {size(needed)} for one "
                f"microbatch, and there are {size(there)}. Lower it, or train.sequence_length."
            )

    def _cost(self, layer: int, name: str, module: nn.Module, inputs: Tensors) -> tuple[LayerCost, Tensors]:
        self._check_room(layer, module, inputs)
        outputs, _ = self._holdings.compute.forward(1, (0, 0), layer, inputs, self._batch, keep=False)
        parameters = self._holdings.compute.parameters_of(layer)
        is_last = layer == len(self._model.layer_names) - 1
        # A module prints what it is made of, with its settings.
        shapes = [tuple(tensor.shape) for tensor in (*parameters, *inputs, *outputs)]
        kind = (repr(module), str(shapes), layer == 0, is_last)
        if kind not in self._seen:
            self._seen[kind] = self._measure(layer, module, inputs, () if is_last else _ones(outputs))
        measured = self._seen[kind]
        self._kinds.append(measured)
        values = value_bytes(self._train)
        num_trained = sum(parameter.numel() for parameter in parameters)
        cost = LayerCost(
            name=name,
            times=measured.times,
            parameter_bytes=values.parameter * measured.num_parameters,
            gradient_bytes=values.gradient * measured.num_parameters,
            optimizer_bytes=values.optimizer * num_trained,
            activation_bytes=measured.activation_bytes,
            recompute_activation_bytes=sum(tensor.nbytes for tensor in inputs),
            output_bytes=sum(tensor.nbytes for tensor in outputs),
            workspace_bytes=measured.workspace_bytes,
            copy_bytes=measured.copy_bytes,
            frozen_bytes=sum(one.nbytes for one in module.parameters() if not one.requires_grad),
        )
        return cost, outputs

    def _measure(self, layer: int, module: nn.Module, inputs: Tensors, gradients: Tensors) -> _Measured:
        compute = self._holdings.compute

        def forward() -> None:
            compute.forward(1, (0, 0), layer, inputs, self._batch, keep=True)

        def backward(*, counted: bool) -> None:
            compute.backward(1, (0, 0), layer, gradients, counted=counted)

        def split() -> None:
            compute.backward_input(1, (0, 0), layer, gradients)
            compute.backward_weight((0, 0), layer, counted=True)

        activation_bytes, allocated_bytes, workspace_bytes = self._bytes(module, inputs, gradients, forward, backward)
        forwards, backwards, halves, splits = [], [], [], []
        deadline = time.perf_counter() + ENOUGH_S
        for repeat in range(MEASURE_REPEATS):
            if repeat >= 2 and time.perf_counter() > deadline:
                break
            forwards.append(self._timed(forward))
            backwards.append(self._timed(lambda: backward(counted=True)))
            if layer > 0:
                forward()
                halves.append(self._timed(lambda: backward(counted=False)))
            forward()
            splits.append(self._timed(split))
        times = split_backward(
            statistics.median(forwards),
            statistics.median(backwards),
            statistics.median(halves) if halves else 0.0,
            statistics.median(splits),
            has_parameters=bool(self._holdings.views(layer)),
        )
        return _Measured(
            layer=layer,
            inputs=inputs,
            gradients=gradients,
            times=(times, *(self._shared(mates, layer, forward, backward) for mates in self._mates)),
            activation_bytes=activation_bytes,
            allocated_bytes=allocated_bytes,
            workspace_bytes=workspace_bytes,
            copy_bytes=sum(copy.nbytes for copy in copies_of(module.parameters())),
            num_parameters=sum(view.numel() for view in self._holdings.views(layer).values()),
        )

    def _shared(
        self, mates: CountedMates, layer: int, forward: Callable[[], None], backward: Callable[..., None]
    ) -> LayerTimes:
        """Returns a layer's times on one of the devices that share a microbatch. They do not split their backwards.

        Exchanges are measured where there is a core for each device, else they take a link's time.
        """
        counted_backward = partial(backward, counted=True)
        compute = self._holdings.compute
        assert isinstance(compute, Compute)
        compute.mates = mates
        forwards, backwards, exchanges = [], [], (0.0, 0.0)
        deadline = time.perf_counter() + ENOUGH_S
        for repeat in range(MEASURE_REPEATS):
            if repeat >= 2 and time.perf_counter() > deadline:
                break
            forwards.append(self._timed(forward))
            forward_counted_s = mates.exchanged_s()
            backwards.append(self._timed(counted_backward))
            exchanges = forward_counted_s, mates.exchanged_s()
        if any(exchanges) and self._device.type == "cpu" and mates.number <= num_cores():
            alone_s = statistics.median(forwards) + statistics.median(backwards)
            exchanges = measure_exchanges(compute, mates.number, forward, counted_backward, alone_s) or exchanges
        compute.mates = None
        whole_s = statistics.median(backwards) + exchanges[1]
        times = split_backward(
            statistics.median(forwards) + exchanges[0],
            whole_s,
            whole_s if layer > 0 else 0.0,
            whole_s,
            has_parameters=bool(self._holdings.views(layer)),
        )
        return msgspec.structs.replace(times, num_devices=mates.number)

    def _bytes(
        self,
        module: nn.Module,
        inputs: Tensors,
        gradients: Tensors,
        forward: Callable[[], None],
        backward: Callable[..., None],
    ) -> tuple[int, int, int]:
        """Returns bytes kept between forward and backward; what a forward allocates of it; what is needed beside it."""
        kept = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in inputs}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in lasting:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        # Once before: buffers that last (accumulators, copies, a library's) are made at first use.
        forward()
        backward(counted=True)
        held = (*module.parameters(), *module.buffers(), *copies_of(module.parameters()))
        lasting = {t.untyped_storage().data_ptr() for t in held}
        with follow_allocations(self._device) as allocations:
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                forward()
            after_forward = allocations.live_bytes()
            backward(counted=True)
            peak = allocations.peak_bytes()
        received = sum(tensor.nbytes for tensor in gradients)
        return sum(kept.values()), after_forward, peak - after_forward + received

    def _timed(self, work: Callable[[], None]) -> float:
        began = compute_now(self._device)
        work()
        return compute_now(self._device) - began


def split_backward(
    forward_s: float, whole_s: float, input_s: float, halves_s: float, *, has_parameters: bool
) -> LayerTimes:
    """Computes a layer's times from four measured ones.

    Args:
        forward_s: seconds of the forward.
        whole_s: of the backward that gives all gradients.
        input_s: of the one that gives the input's alone; 0: nothing needs the input's gradient.
        halves_s: of a backward that is split, both parts together.
        has_parameters: if not, all of the backward is for the input.
    """
    if not has_parameters:
        input_s = whole_s if input_s else 0.0
    elif input_s:
        input_s = min(max(input_s, LEAST_BACKWARD_SHARE * whole_s), (1 - LEAST_BACKWARD_SHARE) * whole_s)
    weight_s = whole_s - input_s if has_parameters else 0.0
    return LayerTimes(
        forward_s=forward_s,
        backward_input_s=input_s,
        backward_weight_s=weight_s,
        split_s=max(0.0, halves_s - whole_s) if has_parameters else 0.0,
    )


def _few(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """Returns the first samples of a microbatch's tensor; all of one that has no row for each sample."""
    return tensor[:ROWS_LOOKED_AHEAD] if tensor.shape[:1] == (rows,) else tensor


def _ones(outputs: Tensors) -> Tensors:
    return tuple(torch.ones_like(tensor) for tensor in outputs if tensor.is_floating_point())
