"""Layers in shards: the unsplit model's numbers within rounding, and the same bits for any division of the shards."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import Any

import msgspec
import pytest
import torch
from small_models import TRAIN, VOCAB_SIZE, filled_layers, random_batch, run_layers, shaken, small_section, whole_state
from test_load import refusal
from torch import nn

from planaria.job.sections.model import ModelSection
from planaria.model.comparison import compare
from planaria.model.huggingface import HuggingFaceModel
from planaria.model.load import load_huggingface_model
from planaria.model.model import ModelError
from planaria.model.tensors import virtual_shards
from planaria.model.tensors.virtual_shards import (
    Sharing,
    Split,
    compute_by_shards,
    shared_out,
    split_parameters,
    tree_sum,
)

SHARDS = 4
"""Twice the key-value heads of the small models: each serves two shards."""
WIDE = {"gpt2": {"n_head": 4}}
FAMILIES = ("gpt2", "llama", "mistral", "qwen2", "qwen3", "gpt_neox", "gemma2", "gemma3_text")
PARTLY = ("olmo2", "mixtral", "qwen3_moe", "deepseek_v3")
"""Of these some modules stay whole."""

Gradients = dict[str, torch.Tensor]


def section(kind: str, shards: int = SHARDS, **changes: Any) -> ModelSection:
    return msgspec.structs.replace(small_section(kind, **{**WIDE.get(kind, {}), **changes}), virtual_shards=shards)


def load(kind: str, shards: int = SHARDS, **changes: Any) -> HuggingFaceModel:
    return load_huggingface_model(section(kind, shards, **changes), TRAIN, vocab_size=VOCAB_SIZE)


def ran(model: HuggingFaceModel, *, training: bool = False) -> tuple[torch.Tensor, Gradients]:
    """Returns the model's outputs on a batch and the gradients of each layer's parameters, by layer and name."""
    layers = [layer.train(training) for layer in filled_layers(model, shaken(whole_state(model)))]
    torch.manual_seed(4)
    (found,) = run_layers(layers, *random_batch(model).values())
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(6))
    (found * weights).sum().backward()
    return found.detach(), {
        f"{at} {name}": parameter.grad
        for at, layer in enumerate(layers)
        for name, parameter in layer.named_parameters()
        if parameter.grad is not None
    }


def sharded_modules(layers: Sequence[nn.Module]) -> list[str]:
    kind = virtual_shards._ShardedForward
    return [path for layer in layers for path, one in layer.named_modules() if isinstance(one.forward, kind)]


@pytest.mark.parametrize("kind", [*FAMILIES, *PARTLY])
def test_shards_give_the_unsplit_models_numbers_within_rounding(kind: str) -> None:
    (expected, gradients), (found, ours) = ran(load(kind, shards=0)), ran(load(kind))
    assert not torch.equal(found, expected), "nothing is split"
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert ours.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-3, atol=1e-4 * float(gradient.abs().max()), msg=name)


def test_attention_and_feed_forward_of_each_block_are_split() -> None:
    model = load("llama")
    layers = [model.build_layer(index) for index in range(len(model.layer_names))]
    assert sharded_modules(layers) == [f"model.layers.{at}.{part}" for at in range(2) for part in ("self_attn", "mlp")]
    plain = load("llama", shards=0)
    assert [spec.shape for group in model.groups for spec in group.parameters] == [
        spec.shape for group in plain.groups for spec in group.parameters
    ]
    assert not sharded_modules([plain.build_layer(1)])


@pytest.mark.parametrize("kind", PARTLY)
def test_what_has_no_plain_rule_stays_whole(kind: str) -> None:
    model = load(kind)
    split = sharded_modules([model.build_layer(index) for index in range(len(model.layer_names))])
    assert split
    assert not any("experts" in path and "shared" not in path for path in split)
    assert any("self_attn" in path for path in split) == (kind in ("mixtral", "qwen3_moe"))


def test_one_shard_has_the_bits_of_the_unsplit_model() -> None:
    (expected, gradients), (found, ours) = ran(load("llama", shards=0)), ran(load("llama", shards=1))
    assert torch.equal(found, expected)
    assert all(torch.equal(ours[name], gradients[name]) for name in gradients)


def summed_by(devices: int) -> Callable[[Sequence[torch.Tensor]], torch.Tensor]:
    """Sums as so many devices do: each its own neighbouring shards, and then their sums."""

    def by_devices(parts: Sequence[torch.Tensor]) -> torch.Tensor:
        each = max(1, len(parts) // devices)
        return tree_sum([tree_sum(parts[at : at + each]) for at in range(0, len(parts), each)])

    return by_devices


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen3"])
def test_any_division_of_the_shards_gives_the_same_bits(
    kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In training, with dropout where the family has some; another order of sums gives other bits."""
    model = load(kind)
    with torch.autocast("cpu", dtype=dtype) if dtype != torch.float32 else nullcontext():
        expected, gradients = ran(model, training=True)
        for devices in (1, 2, 4):
            monkeypatch.setattr(virtual_shards, "tree_sum", summed_by(devices))
            found, ours = ran(model, training=True)
            assert torch.equal(found, expected)
            assert all(torch.equal(ours[name], gradients[name]) for name in gradients)
        monkeypatch.setattr(virtual_shards, "tree_sum", lambda parts: sum(parts[1:], parts[0]))
        found, ours = ran(model, training=True)
        assert not torch.equal(found, expected)


class Meeting:
    """Adds up what devices, each a thread, have of the sums of their runs."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._told: dict[tuple[int, int, int], torch.Tensor] = {}
        self._condition = threading.Condition()

    def sharing(self, place: int) -> Callable[[nn.Module, tuple[torch.Tensor, ...]], Any]:
        """Returns what runs a layer for the device at a place."""
        runs = itertools.count()

        def run(layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Any:
            number = next(runs)
            add_up = partial(self._add_up, place, number)
            with shared_out(Sharing(number=self.number, place=place, add_up=add_up)):
                return layer(*inputs)

        return run

    def _add_up(self, place: int, run: int, which: int, part: torch.Tensor, among: int) -> torch.Tensor:
        with self._condition:
            assert (place, run, which) not in self._told, "one name for two sums"
            self._told[place, run, which] = part
            self._condition.notify_all()
            first = place - place % among
            wanted = [(other, run, which) for other in range(first, first + among)]
            assert self._condition.wait_for(lambda: all(name in self._told for name in wanted), timeout=60)
            return tree_sum([self._told[name] for name in wanted])


def ran_by(model: HuggingFaceModel, devices: int, dtype: torch.dtype) -> tuple[list[torch.Tensor], Gradients]:
    """Returns each device's outputs, and the gradients that the devices count together."""
    meeting, batch = Meeting(devices), random_batch(model)
    built = [filled_layers(model, shaken(whole_state(model))) for _ in range(devices)]

    def on(place: int) -> tuple[torch.Tensor, Gradients, set[str]]:
        run, layers = meeting.sharing(place), built[place]
        split = {f"{at} {name}" for at, layer in enumerate(layers) for name in split_parameters(layer)}
        with torch.autocast("cpu", dtype=dtype) if dtype != torch.float32 else nullcontext():
            wrapped = [Ran(layer.train(), run) for layer in layers]
            (found,) = run_layers(wrapped, *batch.values())
            weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(6))
            (found * weights).sum().backward()
        gradients = {
            f"{at} {name}": parameter.grad
            for at, layer in enumerate(layers)
            for name, parameter in layer.named_parameters()
            if parameter.grad is not None
        }
        return found.detach(), gradients, split

    with ThreadPoolExecutor(devices) as pool:
        results = list(pool.map(on, range(devices)))
    outputs, first, split = [result[0] for result in results], results[0][1], results[0][2]
    for _, gradients, _ in results[1:]:
        assert gradients.keys() == first.keys()
        assert all(torch.equal(gradients[name], first[name]) for name in gradients.keys() - split)
    counted = {
        name: sum((gradients[name] for _, gradients, _ in results[1:]), gradient) if name in split else gradient
        for name, gradient in first.items()
    }
    return outputs, counted


class Ran(nn.Module):
    """A layer that is run by a device."""

    def __init__(self, layer: nn.Module, run: Callable[[nn.Module, tuple[torch.Tensor, ...]], Any]) -> None:
        super().__init__()
        self.layer = layer
        self.run = run

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.run(self.layer, inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "changes"), [*((kind, {}) for kind in (*FAMILIES, "mixtral")), ("llama", {"num_key_value_heads": 1})]
)
def test_devices_that_share_a_run_have_the_bits_of_one(kind: str, changes: dict[str, Any], dtype: torch.dtype) -> None:
    """Also where a key-value head is shared by shards on some or all of the devices."""
    without = {"gpt2": dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)}  # threads share a generator
    model = load(kind, **without.get(kind, {}), **changes)
    ((expected,), gradients) = ran_by(model, 1, dtype)
    for devices in (2, 4):
        outputs, ours = ran_by(model, devices, dtype)
        assert all(torch.equal(output, expected) for output in outputs)
        assert ours.keys() == gradients.keys()
        assert not [name for name in gradients if not torch.equal(ours[name], gradients[name])]


class Dropping(nn.Module):
    """A feed-forward with dropout inside of its shards and behind their sum."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)
        self.inside: list[torch.Tensor] = []
        self.fails = False

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        inside = nn.functional.dropout(self.up(inputs), 0.5, self.training)
        self.inside.append(inside)
        if self.fails:
            raise ArithmeticError
        return nn.functional.dropout(self.down(inside), 0.5, self.training)


def test_dropout_is_each_shards_own_and_what_follows_is_drawn_once() -> None:
    torch.manual_seed(0)
    dropping = Dropping()
    compute_by_shards(dropping, Split(columns={"up": 1}, rows="down"), SHARDS)
    inputs = torch.randn(4, 8)
    outputs, after = [], []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append(dropping(inputs))
        after.append(torch.rand(1))
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(after[0], after[1])
    assert not torch.equal(after[0], after[2])
    masks = [inside == 0 for inside in dropping.inside]
    assert len(masks) == 3 * SHARDS
    assert not any(torch.equal(masks[0], mask) for mask in masks[1:SHARDS])
    assert all(map(torch.equal, masks[:SHARDS], masks[SHARDS : 2 * SHARDS]))
    assert not all(map(torch.equal, masks[:SHARDS], masks[2 * SHARDS :]))


def test_parameters_are_in_their_places_after_a_shard_fails() -> None:
    dropping = Dropping()
    compute_by_shards(dropping, Split(columns={"up": 1}, rows="down"), SHARDS)
    before = dict(dropping.named_parameters())
    dropping.fails = True
    with pytest.raises(ArithmeticError):
        dropping(torch.randn(4, 8))
    assert all(dropping.get_parameter(name) is before[name] for name in before)


@pytest.mark.parametrize(
    ("wrong", "parts"),
    [
        (section("bert", 2), ("model.virtual_shards = 2", "no plan", "bert model", "Set it to 0")),
        (section("gpt2", 8), ("model.virtual_shards = 8 does not divide the 4 heads", "Set it to 4, or to 0")),
        (section("llama", 4, intermediate_size=50), ("the 50 parts of model.layers.0.mlp.gate_proj", "Set it to 2")),
    ],
)
def test_shards_that_do_not_fit_are_refused(wrong: ModelSection, parts: tuple[str, ...]) -> None:
    message = refusal(wrong)
    for part in parts:
        assert part in message


def test_a_plan_that_is_wrong_is_refused_when_a_job_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load("qwen3")
    compare(model, section("qwen3"), TRAIN)
    monkeypatch.setattr(virtual_shards, "tree_sum", lambda parts: parts[0])
    with pytest.raises(
        ModelError, match=r"virtual_shards = 4: a qwen3 model cannot be split .* it gives other outputs"
    ):
        compare(model, section("qwen3"), TRAIN)
