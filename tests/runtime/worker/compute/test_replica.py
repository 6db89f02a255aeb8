"""Optimizers on flat vectors: torch's own, and the same bits however the replicas are put together."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import msgspec
import pytest
import torch

from planaria.job.registry import OptimizerName
from planaria.job.sections.train import ParameterRule, TrainSection
from planaria.model.model import GroupSpec, ParameterSpec
from planaria.protocol.step.schedule import learning_rate
from planaria.runtime.thresholds import SMALL_FLOATS
from planaria.runtime.worker.compute import replica as replica_module
from planaria.runtime.worker.compute.device.device import HostDevice
from planaria.runtime.worker.compute.replica import (
    ALIGNMENT,
    Layout,
    Replica,
    apply_optimizer,
    digest_of,
    weighed_sum,
)

CPU = HostDevice()
TRAIN = TrainSection(
    steps=6, global_batch=2, microbatch=1, sequence_length=4, learning_rate=0.01, warmup_steps=2, weight_decay=0.1
)
SHAPES = {"w": (7, 11), "b": (11,), "big": (3, SMALL_FLOATS), "scale": ()}


def spec_of(shapes: dict[str, tuple[int, ...]]) -> GroupSpec:
    return GroupSpec(
        layers=(0,),
        parameters=tuple(
            ParameterSpec(name=name, shape=shape, decays=len(shape) > 1, uses=((0, name),))
            for name, shape in shapes.items()
        ),
    )


def replica_of(values: dict[str, torch.Tensor], train: TrainSection = TRAIN) -> Replica:
    made = Replica(spec_of({name: tuple(value.shape) for name, value in values.items()}), train, CPU)
    made.initialise(values)
    return made


def random_values(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def with_optimizer(optimizer: OptimizerName, **settings: Any) -> TrainSection:
    """The job with another optimizer, and that one's defaults."""
    kept = ("steps", "global_batch", "microbatch", "sequence_length", "learning_rate", "warmup_steps")
    return TrainSection(optimizer=optimizer, **({name: getattr(TRAIN, name) for name in kept} | settings))


@pytest.mark.parametrize(
    "digest",
    [partial(digest_of, is_on_host=True), lambda vectors: [weighed_sum(one.view(torch.int32)) for one in vectors]],
)
def test_a_digest_changes_with_every_bit_and_with_the_place_of_each_word(digest: Any) -> None:
    vector = torch.arange(1.0, 41.0)
    first = digest((vector,))
    assert digest((vector.clone(),)) == first
    words = vector.view(torch.int32)
    for at in range(0, len(words), 7):
        for bit in range(32):
            changed = words.clone()
            changed[at] ^= 1 << bit if bit < 31 else -(1 << 31)
            assert digest((changed.view(torch.float32),)) != first, (at, bit)
    swapped = vector[[1, 0, *range(2, 40)]]
    assert digest((swapped,)) != first


def test_a_digest_on_a_device_tells_the_pieces_of_a_long_vector_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_module, "DIGEST_WORDS", 8)
    vector = torch.arange(1.0, 41.0)
    swapped = torch.cat([vector[8:16], vector[:8], vector[16:]])
    words, others = vector.view(torch.int32), swapped.view(torch.int32)
    assert weighed_sum(words) == weighed_sum(words.clone()) != weighed_sum(others)
    assert -(1 << 63) <= weighed_sum(words) < 1 << 63


class PlainLion(torch.optim.Optimizer):
    """Lion as its authors wrote it down (Chen et al., 2023, Program 1); torch has none."""

    def __init__(self, params: Any, **settings: Any) -> None:
        super().__init__(params, {"lr": 0.0, **settings})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(group["lr"] * torch.sign(group["betas"][0] * m + (1 - group["betas"][0]) * p.grad))
                m.mul_(group["betas"][1]).add_((1 - group["betas"][1]) * p.grad)


OPTIMIZERS = {
    "adamw": (with_optimizer(OptimizerName.ADAMW), torch.optim.AdamW, ("betas", "eps")),
    "adam": (with_optimizer(OptimizerName.ADAM, weight_decay=0.01), torch.optim.Adam, ("betas", "eps")),
    "sgd": (with_optimizer(OptimizerName.SGD, momentum=0.0, weight_decay=1e-3), torch.optim.SGD, ("momentum",)),
    "momentum": (with_optimizer(OptimizerName.SGD), torch.optim.SGD, ("momentum", "nesterov")),
    "nesterov": (with_optimizer(OptimizerName.SGD, nesterov=True), torch.optim.SGD, ("momentum", "nesterov")),
    "lion": (with_optimizer(OptimizerName.LION), PlainLion, ("betas",)),
}


@pytest.mark.parametrize("kind", ["fused", "foreach"])
@pytest.mark.parametrize("clip_factor", [1.0, 0.25])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_is_torchs_optimizer(name: str, kind: str, clip_factor: float) -> None:
    """To the last bit of torch's fused kernel, but for a tensor's last values, which torch has scalar code for."""
    train, optimizer_class, settings = OPTIMIZERS[name]
    values = random_values(0)
    replica = replica_of(values, train)
    parameters = {name: torch.nn.Parameter(value.clone()) for name, value in values.items()}
    groups = [
        {"params": [p for p in parameters.values() if p.dim() > 1], "weight_decay": train.weight_decay},
        {"params": [p for p in parameters.values() if p.dim() <= 1], "weight_decay": 0.0},
    ]
    given = {setting: getattr(train, setting) for setting in settings}
    optimizer: torch.optim.Optimizer = optimizer_class(groups, **given, **({} if name == "lion" else {kind: True}))
    for step in range(1, 6):
        gradients = random_values(step)
        replica.layout.fill(replica.gradient, gradients)
        apply_optimizer([replica], train, step, clip_factor, learning_rate(train, step))
        for name_, parameter in parameters.items():
            parameter.grad = gradients[name_] * clip_factor
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(train, step)
        optimizer.step()
        assert replica.step == step
        for name_, view in replica.layout.views(replica.parameters).items():
            if kind == "fused" and name != "lion" and view.numel() % ALIGNMENT == 0:
                assert torch.equal(view, parameters[name_].detach())
            torch.testing.assert_close(view, parameters[name_].detach(), rtol=1e-6, atol=1e-6)


def test_rules_say_what_a_parameter_is_trained_with() -> None:
    """The first rule that matches: another rate, another decay; what none matches goes on as before."""
    rules = (
        ParameterRule(match="b*", learning_rate_factor=0.5),
        ParameterRule(match="big", weight_decay=9.0),
        ParameterRule(match="s*", weight_decay=0.5),
    )
    train = msgspec.structs.replace(TRAIN, parameters=rules)
    values, gradients = random_values(0), random_values(1)
    replica, plain = replica_of(values, train), replica_of(values)
    for each, section in ((replica, train), (plain, TRAIN)):
        each.layout.fill(each.gradient, gradients)
        apply_optimizer([each], section, 1, 1.0, 0.1)
    found, known = (each.layout.views(each.parameters) for each in (replica, plain))
    assert torch.equal(found["w"], known["w"])
    for name in ("b", "big"):
        torch.testing.assert_close(found[name] - values[name], (known[name] - values[name]) / 2)
    torch.testing.assert_close(known["scale"] - found["scale"], 0.1 * 0.5 * values["scale"])


def test_who_owns_what_does_not_change_a_bit() -> None:
    """One replica of everything, replicas of one parameter each in any order, and one alone: equal bits."""
    values, gradients = random_values(1), random_values(2)
    whole = replica_of(values)
    whole.layout.fill(whole.gradient, gradients)
    apart = {name: replica_of({name: value}) for name, value in values.items()}
    for name, replica in apart.items():
        replica.layout.fill(replica.gradient, {name: gradients[name]})
    for step in (1, 2):
        apply_optimizer([whole], TRAIN, step, 0.5, learning_rate(TRAIN, step))
        apply_optimizer([apart["scale"], apart["big"]], TRAIN, step, 0.5, learning_rate(TRAIN, step))
        apply_optimizer([apart["b"], apart["w"]], TRAIN, step, 0.5, learning_rate(TRAIN, step))
    for name, replica in apart.items():
        assert torch.equal(replica.layout.views(replica.parameters)[name], whole.layout.views(whole.parameters)[name])


def test_a_replica_moved_in_between_goes_on_with_the_same_bits() -> None:
    stays, moves = replica_of(random_values(3)), replica_of(random_values(3))
    for step in range(1, 5):
        for replica in (stays, moves):
            replica.layout.fill(replica.gradient, random_values(10 + step))
            apply_optimizer([replica], TRAIN, step, 1.0, learning_rate(TRAIN, step))
        if step == 2:
            target = replica_of(random_values(99))
            target.load(moves.state, step)
            moves = target
    assert torch.equal(stays.parameters, moves.parameters)
    assert stays.step == moves.step


@pytest.mark.parametrize("cuts", [[0, 1, 3], [0, 40, 41, 997], [0, 10**9, 10**10]])
def test_a_replica_moves_in_parts(cuts: list[int]) -> None:
    """However it is cut, and if parts have no float at all, it is the same replica in the end."""
    source, target = replica_of(random_values(5)), replica_of(random_values(6))
    source.layout.fill(source.gradient, random_values(7))
    apply_optimizer([source], TRAIN, 1, 1.0, learning_rate(TRAIN, 1))
    for first, end in reversed(list(pairwise(cuts))):
        for own, given in zip(target.part(first, end, cuts[-1]), source.part(first, end, cuts[-1]), strict=True):
            own.copy_(given.clone())
    for own, given in zip(target.state, source.state, strict=True):
        assert torch.equal(own, given)


def test_the_layout_is_aligned_and_puts_what_decays_first() -> None:
    layout = Layout.of(spec_of(SHAPES), TRAIN)
    assert all(slot.offset % ALIGNMENT == 0 for slot in layout.slots)
    assert [span.treatment.weight_decay for span in layout.spans] == [0.1, 0.0]
    assert {slot.name for slot in layout.slots if slot.offset < layout.spans[0].end} == {"w", "big"}
    flat = torch.zeros(layout.size)
    layout.fill(flat, random_values(4))
    for name, view in layout.views(flat).items():
        assert torch.equal(view, random_values(4)[name])
    assert flat.count_nonzero() == sum(torch.Size(shape).numel() for shape in SHAPES.values()), "padding stays zero"


def test_nothing_owned_nothing_done() -> None:
    apply_optimizer([], TRAIN, 1, 1.0, learning_rate(TRAIN, 1))
