"""A backward in two passes gives the bits of a whole one, whatever the layer looks like inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from planaria.job.sections.model import ModelSection
from planaria.job.sections.train import DType, TrainSection
from planaria.model.load import load_model
from planaria.model.model import Batch, Model, Tensors
from planaria.runtime.worker.compute.device.device import HostDevice
from planaria.runtime.worker.compute.layers import Compute, autocast, rounded, widened
from planaria.runtime.worker.compute.split_backward import backward_in_two
from planaria.runtime.worker.transport.frames import data_frame
from planaria.runtime.worker.transport.mailbox import Key
from tests.model.small_models import TRAIN, VARIANTS, VOCAB_SIZE, small_section, whole_state
from tests.proof import rest_in_proof

CPU = HostDevice()
MICROBATCHES = ((0, 1), (1, 1))
MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "recomputed": {"activation_checkpointing": True},
    "bfloat16": {"dtype": DType.BFLOAT16},
    "fast": {"numerics": "fast"},
    "rounded": {"boundary_dtype": DType.BFLOAT16},
    "rounded, recomputed, bfloat16": {
        "boundary_dtype": DType.BFLOAT16,
        "activation_checkpointing": True,
        "dtype": DType.BFLOAT16,
    },
}

Counted = dict[tuple[int, int, str], torch.Tensor]
"""Gradients by (call, layer, name)."""


def sections() -> dict[str, ModelSection]:
    named = {"-".join([kind, *changes]): small_section(kind, **changes) for kind, changes in VARIANTS}
    named["function"] = ModelSection(type="layers:transformer", config={"width": 16, "depth": 2, "context": 16})
    named["tied, tuples, dropout"] = ModelSection(type="tests.runtime.worker.tiny_model:layers", config={"depth": 2})
    named["skipped blocks"] = ModelSection(
        type="tests.runtime.worker.tiny_model:layers", config={"depth": 4, "skip": 0.5}
    )
    named["virtual shards"] = msgspec.structs.replace(small_section("llama"), virtual_shards=4)
    named["recurrent"] = ModelSection(type="tests.runtime.worker.tiny_model:recurrent")
    return named


def needs_processor_for(name: str, train: TrainSection) -> None:
    """Skips the test where this processor cannot run the section: in bfloat16 some with AVX2 alone run no LSTM."""
    if name != "recurrent" or train.dtype is not DType.BFLOAT16:
        return
    try:
        with autocast(train, CPU.place):
            nn.LSTM(2, 2)(torch.zeros(1, 1, 2))
    except RuntimeError:
        pytest.skip("this processor runs no recurrent layers in bfloat16")


class Rig:
    """A model's layers on one device; counts gradients."""

    def __init__(self, model: Model, train: TrainSection) -> None:
        self.model = model
        self.counted: Counted = {}
        self.calls: list[int] = []
        self.compute = Compute(model, train, CPU, self._count, lambda: 1.0)
        state = whole_state(model, seed=train.seed)
        for layer in range(len(model.layer_names)):
            uses = {
                local: state[spec.name].clone()
                for group in model.groups
                for spec in group.parameters
                for at, local in spec.uses
                if at == layer
            }
            self.compute.add_layer(layer, model.build_layer(layer), uses)

    def _count(self, layer: int, gradients: Mapping[str, torch.Tensor]) -> None:
        number = self.calls.count(layer)
        self.calls.append(layer)
        for name, gradient in gradients.items():
            self.counted[number, layer, name] = gradient.clone()

    def forward(self, batch: Batch) -> None:
        for work in MICROBATCHES:
            tensors: Tensors = tuple(batch[name] for name in self.model.inputs)
            for layer in range(len(self.model.layer_names)):
                tensors, _ = self.compute.forward(1, work, layer, tensors, batch, keep=True)

    def backward(self, step: Callable[[tuple[int, int], int, Tensors], Tensors]) -> list[Tensors]:
        """From the top layer down, microbatch after microbatch; the gradients at every boundary."""
        found = []
        for work in MICROBATCHES:
            gradients: Tensors = ()
            for layer in reversed(range(len(self.model.layer_names))):
                gradients = step(work, layer, gradients)
                found.append(gradients)
        return found


@pytest.mark.parametrize("mode", rest_in_proof(MODES))
@pytest.mark.parametrize("name", sections())
def test_two_passes_give_the_bits_of_one(name: str, mode: str) -> None:
    train = msgspec.structs.replace(TRAIN, **MODES[mode])
    needs_processor_for(name, train)
    model = load_model(sections()[name], train, vocab_size=VOCAB_SIZE)
    tokens = torch.randint(VOCAB_SIZE, (2, 16), generator=torch.Generator().manual_seed(1))
    batch = {"input_ids": tokens, "labels": tokens.roll(-1, 1)}
    whole, split = Rig(model, train), Rig(model, train)
    whole.forward(batch)
    expected = whole.backward(lambda work, layer, given: whole.compute.backward(1, work, layer, given, counted=True))
    split.forward(batch)
    found = split.backward(lambda work, layer, given: split.compute.backward_input(1, work, layer, given))
    assert not split.counted, "the first pass counts nothing"
    for work in MICROBATCHES:
        for layer in range(len(model.layer_names)):
            split.compute.backward_weight(work, layer, counted=True)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert len(ours) == len(theirs)
        assert all(map(torch.equal, ours, theirs))
    assert split.counted.keys() == whole.counted.keys()
    assert all(torch.equal(split.counted[key], whole.counted[key]) for key in whole.counted)
    assert whole.counted, "a test that compares nothing"


def test_a_forward_has_the_same_bits_whatever_follows() -> None:
    """A backward, one that runs the forward again, or none; and whoever has the weights runs with them."""
    train = msgspec.structs.replace(TRAIN, activation_checkpointing=True)
    model = load_model(sections()["recurrent"], TRAIN, vocab_size=VOCAB_SIZE)
    tokens = torch.randint(VOCAB_SIZE, (2, 16), generator=torch.Generator().manual_seed(1))
    found = []
    for settings, keep in ((TRAIN, True), (TRAIN, False), (train, True)):
        rig, tensors = Rig(model, settings), (tokens,)
        for layer in range(len(model.layer_names) - 1):
            tensors, _ = rig.compute.forward(1, MICROBATCHES[0], layer, tensors, None, keep=keep)
        found.append(tensors[0])
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("dtype", DType)
def test_what_passes_boundaries_has_half_the_bytes(dtype: DType) -> None:
    """Both ways, as messages have them; token ids and the loss stay as they are."""
    model = load_model(sections()["tied, tuples, dropout"], TRAIN, vocab_size=VOCAB_SIZE)
    tokens = torch.randint(VOCAB_SIZE, (2, 16), generator=torch.Generator().manual_seed(1))
    batch = {"input_ids": tokens, "labels": tokens.roll(-1, 1)}
    sizes = {}
    for boundary in DType:
        rig = Rig(model, msgspec.structs.replace(TRAIN, dtype=dtype, boundary_dtype=boundary))
        passed, loss = [], None
        given: Tensors = (tokens,)
        for layer in range(len(model.layer_names)):
            given, loss = rig.compute.forward(1, MICROBATCHES[0], layer, given, batch, keep=True)
            passed.append(given)
        assert isinstance(loss, float)
        assert passed.pop()[0].dtype is torch.float32
        given = ()
        for layer in reversed(range(1, len(model.layer_names))):
            given = rig.compute.backward(1, MICROBATCHES[0], layer, given, counted=True)
            passed.append(given)
        sizes[boundary] = [payload(tensors) for tensors in passed]
        assert all(gradient.dtype is torch.float32 for gradient in rig.counted.values())
    assert sizes[DType.FLOAT32] == [2 * size for size in sizes[DType.BFLOAT16]]


def payload(tensors: Tensors) -> int:
    """Bytes of a message's tensors."""
    _, *pieces = data_frame(Key("activation", 0, 1, 1, 0, 1), tensors)
    return sum(len(piece) for piece in pieces)


def test_masks_and_numbers_are_not_rounded() -> None:
    train = msgspec.structs.replace(TRAIN, boundary_dtype=DType.BFLOAT16)
    given = (torch.tensor([True]), torch.tensor([257]), torch.tensor([257.0]))
    passed = rounded(given, train)
    assert [tensor.dtype for tensor in passed] == [torch.bool, torch.int64, torch.bfloat16]
    assert [tensor.item() for tensor in widened(passed, train)] == [True, 257, 256.0]
    assert rounded(given, TRAIN) == widened(given, TRAIN) == given


def test_what_is_not_counted_or_nobody_wants_any_more_is_dropped() -> None:
    model = load_model(sections()["gpt2"], TRAIN, vocab_size=VOCAB_SIZE)
    tokens = torch.zeros(2, 16, dtype=torch.int64)
    rig = Rig(model, TRAIN)
    rig.forward({"input_ids": tokens, "labels": tokens})
    rig.backward(lambda work, layer, given: rig.compute.backward_input(1, work, layer, given))
    rig.compute.backward_weight((0, 1), 1, counted=False)
    rig.compute.forget(lambda work: work == (0, 1))
    assert {work for work, _ in rig.compute._weight_passes} == {(0, 1)}
    assert ((0, 1), 1) not in rig.compute._weight_passes
    rig.compute.forget(lambda work: False)
    assert not rig.compute._weight_passes
    assert not rig.counted


# Graphs of other shapes


class Scale(torch.autograd.Function):
    """x * w, as a user's own function; it gives both gradients in each pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, w = ctx.saved_tensors
        return gradient * w, gradient * x


def linear_twice(x: torch.Tensor, w: torch.Tensor, _: torch.Tensor) -> list[torch.Tensor]:
    return [torch.tanh(torch.tanh(x @ w) @ w)]


def hooked(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
    inner = torch.tanh(x @ w)
    inner.register_hook(lambda gradient: 3 * gradient)
    middle = inner @ v
    middle.register_hook(lambda gradient: gradient + 1)
    return [torch.tanh(middle) * v]


def passed_on(x: torch.Tensor, w: torch.Tensor, _: torch.Tensor) -> list[torch.Tensor]:
    return [x @ w, x]


def apart(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
    """The second output depends on no input."""
    return [torch.tanh(x @ w), torch.tanh(v) @ v]


def apart_and_shared(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
    return [torch.tanh(x @ w) @ v, torch.tanh(v)]


def several_in_one_place(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
    """One node of the way, and behind it a small graph over both parameters."""
    return [torch.tanh(x) @ (w @ v + w * v)]


def residual(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
    return [x + torch.tanh(x @ w) @ v + torch.softmax(x, -1)]


def unused(x: torch.Tensor, w: torch.Tensor, _: torch.Tensor) -> list[torch.Tensor]:
    return [torch.tanh(x * w.sum(0))]


def nothing_from_inputs(_: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
    return [w @ v]


def many_outputs(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
    first, second = (x @ w).chunk(2)
    return [torch.tanh(first) @ v, second]


def own_function(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
    return [torch.tanh(Scale.apply(torch.tanh(x @ v), w))]  # type: ignore[no-untyped-call]


def slices_side_by_side(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
    return [torch.tanh(x @ part) @ rows for part, rows in zip(w.chunk(2, 1), v.chunk(2), strict=True)]


def slices_in_turn(x: torch.Tensor, w: torch.Tensor, _: torch.Tensor) -> list[torch.Tensor]:
    first, second = torch.unflatten(w, 1, (2, 2)).unbind(1)
    return [torch.tanh(torch.tanh(x @ first) @ first.T) @ second]


def added_side_by_side(x: torch.Tensor, w: torch.Tensor, _: torch.Tensor) -> list[torch.Tensor]:
    """Three parts, whose sum depends on their order."""
    return [x @ w, torch.tanh(x) @ w, torch.sin(x) @ w]


def crossed(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
    """Two nodes with a slice each, one on the way of the other, and a third with slices of both parameters."""
    (first, second), (third, fourth) = w.chunk(2), v.chunk(2)
    return [torch.tanh(torch.tanh(x[:, :2] @ first) @ third.T) @ torch.ones(2, 2), x[:, :2] @ (second + fourth)]


SHAPES = [
    slices_side_by_side, slices_in_turn, added_side_by_side, crossed, linear_twice, hooked, passed_on, apart,
    apart_and_shared, several_in_one_place, residual, unused, nothing_from_inputs, many_outputs, own_function,
]  # fmt: skip
Shape = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], list[torch.Tensor]]


@pytest.mark.parametrize("needs_input", [True, False], ids=["inner", "first layer"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_two_passes_over_any_graph(shape: Shape, needs_input: bool) -> None:
    draw = torch.Generator().manual_seed(5)
    x, w, v = (torch.randn(4, 4, generator=draw).requires_grad_() for _ in range(3))
    inputs = [x] if needs_input else []
    parameters = [nn.Parameter(w.detach()), nn.Parameter(v.detach())]
    x = x if needs_input else x.detach()
    outputs = [out for out in shape(x, *parameters) if out.requires_grad]
    given = [torch.randn(out.shape, generator=draw) for out in outputs]
    expected = torch.autograd.grad(outputs, [*inputs, *parameters], given, retain_graph=True, allow_unused=True)
    of_inputs, weight_pass = backward_in_two(outputs, given, inputs, parameters)
    found = [*of_inputs, *weight_pass.gradients()]
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert torch.equal(ours, theirs)


class Products(TorchDispatchMode):
    """Counts matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += func is torch.ops.aten.mm.default
        return func(*args, **(kwargs or {}))


def test_no_product_is_computed_twice_or_in_the_wrong_pass() -> None:
    leaf = torch.randn(4, 4).requires_grad_()
    parameters = [nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4, 4))]
    with Products() as of_forward:
        (output,) = residual(leaf, *parameters)
    with Products() as of_inputs:
        _, weight_pass = backward_in_two([output], [torch.ones(4, 4)], [leaf], parameters)
    with Products() as of_weights:
        weight_pass.gradients()
    assert (of_forward.number, of_inputs.number, of_weights.number) == (2, 2, 2)


def test_products_of_slices_are_in_their_pass_too() -> None:
    leaf = torch.randn(4, 4).requires_grad_()
    parameters = [nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4, 4))]
    outputs = slices_side_by_side(leaf, *parameters)
    with Products() as of_inputs:
        _, weight_pass = backward_in_two(outputs, [torch.ones(4, 4)] * 2, [leaf], parameters)
    with Products() as of_weights:
        weight_pass.gradients()
    assert (of_inputs.number, of_weights.number) == (4, 4)
