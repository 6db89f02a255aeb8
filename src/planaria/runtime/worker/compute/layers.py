"""Runs forwards and backwards, one layer at a time: each layer is an autograd graph of its own.

Where boundaries between layers round, that is part of each layer's graph: its inputs and outputs, and the gradients of
both, are bfloat16, as they travel, and float32 inside.

Knows nothing of plans or peers. What a forward keeps for its backward, and the input's half of a split backward for
the weights' half, is named by (microbatch, born), as in the program's instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, SupportsFloat

import torch
from torch import nn

from planaria.job.sections.train import DType, TrainSection
from planaria.model.loss import scored
from planaria.model.model import Batch, Model, Tensors
from planaria.model.tensors.virtual_shards import Sharing, shared_out, split_parameters
from planaria.protocol.messages.from_worker import Score
from planaria.protocol.worker.layer_runner import LayerRunner
from planaria.protocol.worker.progress import Work
from planaria.runtime.worker.compute.compilation import as_over_a_wire, compiled
from planaria.runtime.worker.compute.device.device import Device, kept_on_host
from planaria.runtime.worker.compute.device.queues import Stream
from planaria.runtime.worker.compute.seeds import seed_layer
from planaria.runtime.worker.compute.split_backward import Gradients, WeightPass, backward_at_once, backward_in_two
from planaria.runtime.worker.compute.statistics import RunningStatistics
from planaria.runtime.worker.compute.weight_copies import begin_run, copies_of, drop_copies, parameter

Count = Callable[[int, Mapping[str, torch.Tensor]], None]
"""Called with (layer, gradients and what norms tell, by name in the layer) for each counted layer of a backward."""


class LayerCompute(LayerRunner[Batch, Tensors], Protocol):
    """Runs layers made of tensors: this module's `Compute`, or an emulated device's."""

    def add_layer(self, layer: int, module: nn.Module, parameters: Mapping[str, torch.Tensor]) -> None:
        """Adds a layer to be run, whose parameters are these views of the replicas' memory."""
        ...

    def parameters_of(self, layer: int) -> tuple[torch.Tensor, ...]: ...


class Mates(Protocol):
    """The other devices of a stage, where they share each microbatch.

    Attributes:
        number: of devices, this one included; 1: nothing is shared.
        place: of this device among them.
    """

    @property
    def number(self) -> int: ...

    @property
    def place(self) -> int: ...

    def add_up(self, work: Work, name: int, part: torch.Tensor, among: int) -> torch.Tensor:
        """Returns the sum of what so many neighbouring devices have under this name, by a fixed tree. One that is put
        down and asked for again exchanges nothing twice."""
        ...

    def forget(self, keep: Callable[[Work, int], bool]) -> None:
        """Forgets what was exchanged for sums, of a microbatch and by name, that nobody will go on with."""
        ...


class LayerFailed(Exception):
    """A layer of the user's raised: carries the name of the layer and the error."""

    def __init__(self, layer: str, error: BaseException) -> None:
        text = f"layer {layer!r}: {type(error).__name__}: {error}"
        if "does not have a deterministic implementation" in text:
            text = f'layer {layer!r}: {str(error).partition(",")[0]}. Set train.numerics = "fast".'
        super().__init__(text)
        self.layer = layer


@dataclass(slots=True)
class _Kept:
    """What a layer's backward needs: its inputs, and (without recomputation) its outputs and what its norms tell."""

    inputs: Tensors
    outputs: Tensors | None
    batch: Batch | None
    told: Mapping[str, torch.Tensor]


_MOST_SUMS = 1 << 12
"""More sums than the devices of a stage make in a run of one layer."""

_AUTOCAST = {DType.BFLOAT16: torch.bfloat16, DType.FLOAT16: torch.float16}


def autocast(train: TrainSection, device: torch.device) -> AbstractContextManager[object]:
    if train.dtype in _AUTOCAST:
        return torch.autocast(device.type, dtype=_AUTOCAST[train.dtype], cache_enabled=False)
    return nullcontext()


def unscaled(gradients: dict[str, torch.Tensor], loss_scale: float) -> dict[str, torch.Tensor]:
    """Returns gradients of a loss, given those of the loss multiplied by a power of two."""
    if loss_scale == 1.0:
        return gradients
    return {name: gradient * (1.0 / loss_scale) for name, gradient in gradients.items()}


def rounded(tensors: Tensors, train: TrainSection) -> Tensors:
    """Returns what of a layer's outputs the next one is given: in bfloat16, where boundaries between layers round."""
    return tuple(
        tensor.to(torch.bfloat16) if _rounds(train) and tensor.is_floating_point() else tensor for tensor in tensors
    )


def widened(tensors: Tensors, train: TrainSection) -> Tensors:
    """Returns what a layer runs on, given what has come over a boundary. Its gradients are rounded on the way back."""
    return tuple(tensor.float() if _rounds(train) and tensor.is_floating_point() else tensor for tensor in tensors)


def _rounds(train: TrainSection) -> bool:
    return train.boundary_dtype is DType.BFLOAT16


def bind(
    module: nn.Module,
    parameters: Mapping[str, torch.Tensor],
    make: Callable[[torch.Tensor], nn.Parameter] = nn.Parameter,
) -> dict[str, nn.Parameter]:
    """Makes the module's trained parameters views of the replicas' memory; returns them by their name in the module.

    Frozen ones stay, made by `make` too.
    """
    bound = {}
    for name, own in list(module.named_parameters(remove_duplicate=False)):
        path, _, last = name.rpartition(".")
        weight = make(parameters.get(name, own.detach()))
        if name in parameters:
            bound[name] = weight
        else:
            assert not own.requires_grad, f"{name} is trained, and no replica holds it"
            weight.requires_grad_(False)
        setattr(module.get_submodule(path), last, weight)  # an LSTM has a list of its weights too
    return bound


class Compute:
    """Runs layers on a CPU or GPU; see `LayerCompute`.

    Args:
        model: whose layers.
        train: its numbers.
        device: where layers run.
        count: counts gradients.
        loss_scale: tells what the loss is multiplied by in the step in progress, so that what is computed of its
            gradients fits the dtype; they are divided by it before they are counted.

    Attributes:
        mates: with which each microbatch is shared; None: it is not. Of parameters that are not split the first of them
            counts the gradients, of the others each its part.
    """

    def __init__(
        self, model: Model, train: TrainSection, device: Device, count: Count, loss_scale: Callable[[], float]
    ) -> None:
        self._model = model
        self._train = train
        self._device = device
        self._count = count
        self._loss_scale = loss_scale
        self.mates: Mates | None = None
        self._last = len(model.layer_names) - 1
        trained = [group for group in model.groups if not group.is_statistics]
        self._first_trained = min((layer for group in trained for layer in group.layers), default=0)
        self._modules: dict[int, nn.Module] = {}
        self._called: dict[int, Callable[..., Any]] = {}
        self._parameters: dict[int, dict[str, nn.Parameter]] = {}
        self._statistics: dict[int, RunningStatistics] = {}
        self._kept: dict[tuple[Work, int], _Kept] = {}
        self._told: dict[tuple[Work, int], Mapping[str, torch.Tensor]] = {}
        self._weight_passes: dict[tuple[Work, int], WeightPass] = {}
        self._beside: set[tuple[Work, int]] = set()
        """Whose forward was beside computation, so that their backward is."""
        self._scale = 1.0 / train.num_microbatches
        dtype = _AUTOCAST.get(train.dtype)
        self._make = nn.Parameter if dtype is None or train.compile else partial(parameter, dtype=dtype)

    @property
    def layers(self) -> tuple[int, ...]:
        return tuple(sorted(self._modules))

    def add_layer(self, layer: int, module: nn.Module, parameters: Mapping[str, torch.Tensor]) -> None:
        self._parameters[layer] = bind(module.to(self._device.place), parameters, self._make)
        self._statistics[layer] = RunningStatistics(module, parameters, self._train.num_microbatches)
        self._modules[layer] = module
        self._called[layer] = compiled(module) if self._train.compile else module

    def parameters_of(self, layer: int) -> tuple[torch.Tensor, ...]:
        return tuple(self._parameters[layer].values())

    def drop_layer(self, layer: int) -> None:
        drop_copies(self._modules[layer].parameters())
        del self._modules[layer], self._called[layer], self._parameters[layer], self._statistics[layer]

    def forget(self, keep: Callable[[Work], bool]) -> None:
        """Drops what is kept for microbatches that nobody will finish here. With all of them, copies of weights go."""
        for entry in [entry for entry in self._kept if not keep(entry[0])]:
            del self._kept[entry]
        for entry in [entry for entry in self._told if not keep(entry[0])]:
            del self._told[entry]
            self._weight_passes.pop(entry, None)
        self._beside.intersection_update([*self._kept, *self._told])
        if not self._kept:
            for module in self._modules.values():
                drop_copies(module.parameters())
        if self.mates is not None:
            self.mates.forget(lambda work, name: keep(work))

    def forward(
        self,
        step: int,
        work: Work,
        layer: int,
        inputs: Tensors,
        batch: Batch | None,
        *,
        keep: bool,
        on_host: bool = False,
    ) -> tuple[Tensors, SupportsFloat | None]:
        recompute = self._train.activation_checkpointing
        moves = keep and on_host and not recompute and not self._device.is_on_host
        differentiates = (keep or self._train.compile) and layer > self._first_trained
        leaves = tuple(
            tensor.detach().requires_grad_(differentiates and tensor.is_floating_point()) for tensor in inputs
        )
        staying = list(self._modules[layer].parameters())
        saving = kept_on_host([*staying, *copies_of(staying)], self._device) if moves else nullcontext()
        held = batch if layer == self._last else None
        used = (*inputs, *(held or {}).values())
        # With gradients even where none will be asked for: without them torch's LSTM computes other bits on a CPU.
        with self._device.on_shadows(used) if on_host else nullcontext(), torch.enable_grad(), saving:
            outputs, told = self._run(step, work, layer, leaves, batch)
            loss = self._device.number(outputs[0].detach()) if layer == self._last else None
        if keep:
            gone = recompute or layer < self._first_trained  # the latter has no backward
            self._kept[work, layer] = _Kept(leaves, None if gone else outputs, held, told)
            if on_host:
                self._beside.add((work, layer))
        return tuple(tensor.detach() for tensor in outputs), loss

    def evaluate(
        self, step: int, work: Work, layer: int, inputs: Tensors, batch: Batch | None
    ) -> tuple[Tensors, Score | None]:
        module = self._modules[layer].eval()
        try:
            with torch.no_grad(), self._statistics[layer].in_use():
                outputs = self._outputs(0, work, layer, inputs, module)
                if layer < self._last:
                    return rounded(outputs, self._train), None
                assert batch is not None
                with self._naming(layer), autocast(self._train, self._device.place):
                    return (), Score(*scored(self._model, outputs, batch))
        finally:
            module.train()

    def _run(
        self, step: int, work: Work, layer: int, inputs: Tensors, batch: Batch | None, *, again: bool = False
    ) -> tuple[Tensors, Mapping[str, torch.Tensor]]:
        """Returns what comes out, and what the layer's norms tell of the microbatch."""
        result = self._outputs(step, work, layer, inputs, self._called[layer], again=again)
        with self._naming(layer):
            told = self._statistics[layer].take(work[0])
            if layer < self._last:
                return rounded(result, self._train), told
            assert batch is not None
            with autocast(self._train, self._device.place):
                return (self._model.loss(result, batch),), told

    def _outputs(
        self, step: int, work: Work, layer: int, inputs: Tensors, called: Callable[..., Any], *, again: bool = False
    ) -> Tensors:
        """Runs the layer's module, as it is or compiled, on what has come over a boundary."""
        seed_layer(self._train.seed, step, work[0], layer, self._device.place)
        begin_run(self._modules[layer].parameters())
        with self._naming(layer), self._sharing(work, layer, again=again):
            given = widened(inputs, self._train) if layer > 0 else inputs
            with autocast(self._train, self._device.place):
                outputs = called(*(as_over_a_wire(given) if self._train.compile else given))
        return outputs if isinstance(outputs, tuple) else (outputs,)

    @property
    def _is_shared(self) -> bool:
        return self.mates is not None and self.mates.number > 1

    @contextmanager
    def _sharing(self, work: Work, layer: int, *, again: bool) -> Iterator[None]:
        """Shares a layer's run out to the stage's devices, if they share microbatches."""
        mates = self.mates
        if mates is None or mates.number == 1:
            yield
            return
        first = (2 * layer + again) * _MOST_SUMS

        def add_up(which: int, part: torch.Tensor, among: int) -> torch.Tensor:
            return mates.add_up(work, first + which, part, among)

        with shared_out(Sharing(number=mates.number, place=mates.place, add_up=add_up)):
            yield
        self._forget_sums(work, layer)

    def _forget_sums(self, work: Work, layer: int) -> None:
        """Forgets what was exchanged for a layer of a microbatch: it is done."""
        if self.mates is not None:
            self.mates.forget(lambda other, name: other != work or name // (2 * _MOST_SUMS) != layer)

    @contextmanager
    def _naming(self, layer: int) -> Iterator[None]:
        """Adds the layer's name to what the user's code raises."""
        try:
            yield
        except Exception as error:
            raise LayerFailed(self._model.layer_names[layer], error) from error

    @contextmanager
    def _where_its_forward_was(self, work: Work, layer: int, given: Tensors = ()) -> Iterator[None]:
        """Runs what is inside beside computation, if the forward ran there; what computation does later waits for it.

        Args:
            given: gradients that it uses.
        """
        if (work, layer) not in self._beside:
            yield
            return
        with self._device.on_shadows(given):
            yield
        self._device.after(Stream.SHADOWS)

    def backward(self, step: int, work: Work, layer: int, gradients: Tensors, *, counted: bool) -> Tensors:
        with self._where_its_forward_was(work, layer, gradients):
            return self._backward(step, work, layer, gradients, counted=counted)

    def _backward(self, step: int, work: Work, layer: int, gradients: Tensors, *, counted: bool) -> Tensors:
        inputs, roots, given, told = self._graph(step, work, layer, gradients)
        parameters: list[torch.Tensor] = list(self._parameters[layer].values()) if counted else []
        wanted = inputs + parameters
        found: Gradients = [None] * len(wanted)
        if roots and wanted:
            with self._naming(layer):
                found = self._gradients(work, layer, roots, wanted, given)
        del self._kept[work, layer]
        if counted:
            self._count_all(layer, found[len(inputs) :], told)
        return _filled(inputs, found[: len(inputs)])

    def backward_input(self, step: int, work: Work, layer: int, gradients: Tensors) -> Tensors:
        with self._where_its_forward_was(work, layer, gradients):
            return self._backward_input(step, work, layer, gradients)

    def _backward_input(self, step: int, work: Work, layer: int, gradients: Tensors) -> Tensors:
        inputs, roots, given, self._told[work, layer] = self._graph(step, work, layer, gradients)
        parameters = list(self._parameters[layer].values())
        found: Gradients = [None] * len(inputs)
        if roots and self._is_shared:
            with self._naming(layer):
                whole = self._gradients(work, layer, roots, [*inputs, *parameters], given)
            found, self._weight_passes[work, layer] = whole[: len(inputs)], WeightPass(lambda: whole[len(inputs) :])
        elif roots:
            with self._naming(layer):
                in_two = backward_at_once if self._train.compile else backward_in_two
                found, self._weight_passes[work, layer] = in_two(roots, given, inputs, parameters)
        del self._kept[work, layer]
        return _filled(inputs, found)

    def _gradients(
        self,
        work: Work,
        layer: int,
        roots: list[torch.Tensor],
        wanted: list[torch.Tensor],
        given: list[torch.Tensor | None],
    ) -> Gradients:
        """Runs a whole backward. One that is shared may be put down where it waits for others, and run again."""
        found = torch.autograd.grad(roots, wanted, given, allow_unused=True, retain_graph=self._is_shared)
        self._forget_sums(work, layer)
        return found

    def backward_weight(self, work: Work, layer: int, *, counted: bool) -> None:
        with self._where_its_forward_was(work, layer):
            self._backward_weight(work, layer, counted=counted)

    def _backward_weight(self, work: Work, layer: int, *, counted: bool) -> None:
        told = self._told.pop((work, layer))
        weight_pass = self._weight_passes.pop((work, layer), None)
        if counted:
            with self._naming(layer):
                found = () if weight_pass is None else weight_pass.gradients()
            self._count_all(layer, found or [None] * len(self._parameters[layer]), told)

    def _graph(
        self, step: int, work: Work, layer: int, gradients: Tensors
    ) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor | None], Mapping[str, torch.Tensor]]:
        """Returns the layer's graph: inputs, roots with their gradients, and what its norms tell.

        There is none where this layer and all before it are frozen; nor came gradients.
        """
        kept = self._kept[work, layer]
        if layer < self._first_trained:
            return [], [], [], kept.told
        outputs = kept.outputs
        if outputs is None:
            with torch.enable_grad():
                outputs, _ = self._run(step, work, layer, kept.inputs, kept.batch, again=True)
            if self._is_shared:
                kept.outputs = outputs
        inputs = [tensor for tensor in kept.inputs if tensor.requires_grad]
        if layer == self._last:
            return inputs, [outputs[0] * (self._scale * self._loss_scale())], [None], kept.told
        pairs = [
            (output, gradient)
            for output, gradient in zip(_floating(outputs), gradients, strict=True)
            if output.requires_grad
        ]
        return inputs, [pair[0] for pair in pairs], [pair[1] for pair in pairs], kept.told

    def _count_all(self, layer: int, found: Gradients, told: Mapping[str, torch.Tensor]) -> None:
        named = zip(self._parameters[layer], found, strict=True)
        gradients = {name: gradient for name, gradient in named if gradient is not None}
        if self.mates is not None and self.mates.place:
            split, told = split_parameters(self._modules[layer]), {}
            gradients = {name: gradient for name, gradient in gradients.items() if name in split}
        self._count(layer, {**unscaled(gradients, self._loss_scale()), **told})


def _filled(inputs: list[torch.Tensor], gradients: Gradients) -> Tensors:
    """Fills in gradients of 0 for inputs that nothing depends on."""
    return tuple(
        torch.zeros_like(tensor) if gradient is None else gradient
        for tensor, gradient in zip(inputs, gradients, strict=True)
    )


def _floating(tensors: Tensors) -> list[torch.Tensor]:
    return [tensor for tensor in tensors if tensor.is_floating_point()]
