"""Running statistics of batch norms: torch's numbers, and the same bits in any order of microbatches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from planaria.job.sections.train import TrainSection
from planaria.model.huggingface import logits
from planaria.model.model import GroupSpec, ParameterSpec
from planaria.model.tensors.batch_norms import statistics
from planaria.runtime.worker.compute.accumulator import Rounding, add_up
from planaria.runtime.worker.compute.device.device import HostDevice
from planaria.runtime.worker.compute.holdings import Holdings
from planaria.runtime.worker.compute.replica import Layout
from planaria.runtime.worker.compute.statistics import GRID_EXPONENT, RunningStatistics, encoded, update
from tests.model.small_models import TRAIN, load_small

CPU = HostDevice()


@pytest.mark.parametrize(("order", "is_split"), [((0, 1, 2), False), ((2, 0, 1), True)])
def test_a_resnet_keeps_what_torch_keeps(order: tuple[int, ...], is_split: bool) -> None:
    """Whatever the order of microbatches is; torch's is that of their numbers."""
    model = load_small("resnet")
    train = msgspec.structs.replace(TRAIN, global_batch=6, microbatch=2)
    generator = torch.Generator().manual_seed(1)
    (example,) = model.example.values()
    pictures = [3.0 + 2.0 * torch.randn(example.shape, generator=generator) for _ in order]
    first = {name: value for g in range(len(model.groups)) for name, value in model.initial_state(g, 1).items()}
    whole = model.whole(first).train()
    with torch.no_grad():
        for picture in pictures:
            logits(whole, {"pixel_values": picture})
    found = moved_on(model, train, {at: pictures[at] for at in order}, is_split=is_split)
    expected = dict(statistics(whole))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(found[name], value.float(), rtol=1e-6, atol=1e-6), name
    in_turn = moved_on(model, train, dict(enumerate(pictures)), is_split=False)
    assert all(torch.equal(found[name], in_turn[name]) for name in found)


def moved_on(
    model: Any, train: TrainSection, pictures: Mapping[int, torch.Tensor], *, is_split: bool
) -> dict[str, torch.Tensor]:
    """Runs a step of these microbatches layer by layer; returns the running statistics after it."""
    holdings = Holdings(model, train, CPU)
    compute = holdings.compute
    layers, groups = range(len(model.layer_names)), range(len(model.groups))
    for group in groups:
        replica = holdings.new_replica(group)
        replica.initialise(model.initial_state(group, 1))
        holdings.put(group, replica)
    holdings.own_layers(layers)
    holdings.begin_step((4,) * len(groups))
    for microbatch, picture in pictures.items():
        batch = {"pixel_values": picture, "labels": torch.zeros(len(picture), dtype=torch.int64)}
        values: tuple[torch.Tensor, ...] = (picture,)
        for layer in layers:
            values, _ = compute.forward(1, (microbatch, 0), layer, values, batch, keep=True)
        values = ()
        for layer in reversed(layers):
            if is_split:
                values = compute.backward_input(1, (microbatch, 0), layer, values)
                compute.backward_weight((microbatch, 0), layer, counted=True)
            else:
                values = compute.backward(1, (microbatch, 0), layer, values, counted=True)
    found: dict[str, torch.Tensor] = {}
    for group in groups:
        add_up([holdings.accumulator(group).total], holdings.replicas[group].gradient)
        assert (holdings.squared_norm(group) == 0.0) == model.groups[group].is_statistics
    holdings.apply(groups, 1, 1.0, 1e-3)
    for group in groups:
        if model.groups[group].is_statistics:
            found |= holdings.replicas[group].named_state()["parameter"]
    return found


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e3, 1e6])
def test_statistics_of_any_size_are_kept_to_a_float(size: float) -> None:
    """From the first step on, where nothing tells their size. What a third microbatch would add is left out."""
    norm = nn.BatchNorm1d(5, momentum=0.2)
    names = ("running_mean", "running_var", "num_batches_tracked")
    shapes = {"num_batches_tracked": ()}
    specs = [
        ParameterSpec(name=name, shape=shapes.get(name, (5,)), decays=False, uses=((0, name),), is_statistic=True)
        for name in names
    ]
    layout = Layout.of(GroupSpec(layers=(0,), parameters=tuple(specs)), TRAIN)
    own = torch.zeros(layout.size)
    views = layout.views(own)
    telling = RunningStatistics(norm, views, 3)
    total = torch.zeros(layout.size, dtype=torch.float64)
    given = size * (2.0 + torch.randn(2, 40, 5, generator=torch.Generator().manual_seed(2)))
    for microbatch in (0, 2):
        norm(given[microbatch // 2])
        values = encoded(layout, telling.take(microbatch))
        Rounding(CPU).add(total, values, exponent=GRID_EXPONENT, contributions=3, first=microbatch == 0)
    update(layout, own, total.float())
    wide = given.double()
    mean = 0.2 * 0.8**2 * wide[0].mean(0) + 0.2 * wide[1].mean(0)
    variance = 0.2 * 0.8**2 * wide[0].var(0) + 0.2 * wide[1].var(0)
    assert torch.allclose(views["running_mean"].double(), mean, rtol=1e-6, atol=1e-9)
    assert torch.allclose(views["running_var"].double(), variance, rtol=1e-6, atol=1e-9)
    assert views["num_batches_tracked"] == 2
    before = views["running_mean"].clone()
    update(layout, own, torch.zeros(layout.size))
    assert torch.equal(views["running_mean"], before), "nothing was counted"


def test_a_norm_that_runs_twice_for_a_microbatch_is_refused() -> None:
    norm = nn.BatchNorm1d(5)
    telling = RunningStatistics(norm, {}, 3)
    norm(norm(torch.randn(4, 5)))
    with pytest.raises(RuntimeError, match="runs 2 times"):
        telling.take(0)
