"""Copies of weights change no number, and are made once a step."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from planaria.job.sections.train import DType
from planaria.model.load import load_model
from planaria.runtime.worker.compute import layers
from planaria.runtime.worker.compute.layers import autocast
from planaria.runtime.worker.compute.weight_copies import begin_run, copies_of, drop_copies, parameter
from tests.model.small_models import TRAIN, VOCAB_SIZE
from tests.runtime.worker.compute.test_layers import CPU, MICROBATCHES, Rig, needs_processor_for, sections

BFLOAT16 = msgspec.structs.replace(TRAIN, dtype=DType.BFLOAT16)


@pytest.mark.parametrize("recomputes", [False, True], ids=["plain", "recomputed"])
@pytest.mark.parametrize("name", sections())
def test_the_numbers_are_autocasts(name: str, recomputes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two microbatches in flight, and in the step after an update that no version counter tells of."""
    train = msgspec.structs.replace(BFLOAT16, activation_checkpointing=recomputes)
    needs_processor_for(name, train)
    model = load_model(sections()[name], train, vocab_size=VOCAB_SIZE)
    tokens = torch.randint(VOCAB_SIZE, (2, 16), generator=torch.Generator().manual_seed(1))
    batch = {"input_ids": tokens, "labels": tokens.roll(-1, 1)}
    copying = Rig(model, train)
    monkeypatch.setattr(layers, "parameter", lambda values, dtype: nn.Parameter(values))
    plain = Rig(model, train)
    made = 0
    for _ in range(2):
        found = []
        for rig in (plain, copying):
            rig.compute.forget(lambda work: False)
            rig.forward(batch)
            backward = rig.compute.backward
            found.append(rig.backward(lambda work, at, given, run=backward: run(1, work, at, given, counted=True)))
        expected, ours = found
        for one, other in zip(expected, ours, strict=True):
            assert all(map(torch.equal, one, other))
        assert plain.counted.keys() == copying.counted.keys()
        assert all(torch.equal(plain.counted[key], copying.counted[key]) for key in plain.counted)
        made += sum(len(copies_of(copying.compute.parameters_of(at))) for at in range(len(model.layer_names)))
        assert not any(copies_of(plain.compute.parameters_of(at)) for at in range(len(model.layer_names)))
        for rig in (plain, copying):
            for at in range(len(model.layer_names)):
                for weight in rig.compute.parameters_of(at):
                    weight.detach().numpy()[...] *= 1.5
    assert made > 0


class Casts(TorchDispatchMode):
    """Counts casts of matrices of a shape."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.number = 0
        self._shape = shape

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        is_narrowing = func is torch.ops.aten._to_copy.default and kwargs.get("dtype") is torch.bfloat16
        self.number += is_narrowing and args[0].shape == self._shape
        return func(*args, **kwargs)


def test_a_weight_is_cast_once_for_all_microbatches() -> None:
    weight, x = parameter(torch.randn(5, 7)), torch.randn(3, 7)
    with Casts((5, 7)) as casts:
        for _ in MICROBATCHES:
            begin_run([weight])
            with autocast(BFLOAT16, CPU.place):
                nn.functional.linear(x, weight)
    assert casts.number == 1
    drop_copies([weight])
    assert not copies_of([weight])


def test_gradients_of_two_uses_in_a_layer_are_added_in_float32() -> None:
    """As they are where autocast casts at each use."""
    values, x = torch.randn(7, 7), torch.randn(64, 7)

    def gradient(weight: torch.Tensor) -> torch.Tensor:
        begin_run([weight])
        with autocast(BFLOAT16, CPU.place):
            output = torch.tanh(x @ weight) @ weight
        (found,) = torch.autograd.grad(output.float().square().sum(), [weight])
        return found

    plain, copied = nn.Parameter(values), parameter(values)
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=True):
        output = torch.tanh(x @ plain) @ plain
        (shared,) = torch.autograd.grad(output.float().square().sum(), [plain])
    assert torch.equal(gradient(copied), gradient(plain))
    assert torch.equal(gradient(copied), gradient(plain)), "with the copy of the first run"
    assert not torch.equal(shared, gradient(plain)), "a test that shows nothing"


def test_where_a_layer_turns_autocast_off_its_weights_are_float32() -> None:
    weight = parameter(torch.randn(7, 7))
    x = torch.randn(3, 7)
    with autocast(BFLOAT16, CPU.place), torch.autocast("cpu", enabled=False):
        assert torch.equal(nn.functional.linear(x, weight), nn.functional.linear(x, weight.detach().clone()))
    with torch.autocast("cpu", dtype=torch.float16):
        assert nn.functional.linear(x, weight).dtype is torch.float16
    assert not copies_of([weight])


def test_what_is_no_matrix_is_not_copied() -> None:
    assert type(parameter(torch.randn(7))) is nn.Parameter
