"""AdamW on flat vectors: torch's own within rounding, and the same bits however the replicas are put together."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from planaria.job.settings import TrainSection
from planaria.model.model import GroupSpec, ParameterSpec
from planaria.protocol.step.commit import learning_rate
from planaria.runtime.worker.compute.replica import ALIGNMENT, SMALL, Layout, Replica, apply_adamw

CPU = torch.device("cpu")
TRAIN = TrainSection(
    steps=6, global_batch=2, microbatch=1, sequence_length=4, learning_rate=0.01, warmup_steps=2, weight_decay=0.1
)
SHAPES = {"w": (7, 11), "b": (11,), "big": (3, SMALL), "scale": ()}


def spec_of(shapes: dict[str, tuple[int, ...]]) -> GroupSpec:
    return GroupSpec(
        layers=(0,),
        parameters=tuple(
            ParameterSpec(name=name, shape=shape, decays=len(shape) > 1, uses=((0, name),))
            for name, shape in shapes.items()
        ),
    )


def replica_of(values: dict[str, torch.Tensor]) -> Replica:
    made = Replica(spec_of({name: tuple(value.shape) for name, value in values.items()}), CPU)
    made.initialise(values)
    return made


def random_values(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


@pytest.mark.parametrize("kind", ["fused", "foreach"])
@pytest.mark.parametrize("clip_factor", [1.0, 0.25])
def test_it_is_torchs_adamw(kind: str, clip_factor: float) -> None:
    values = random_values(0)
    replica = replica_of(values)
    parameters = {name: torch.nn.Parameter(value.clone()) for name, value in values.items()}
    groups = [
        {"params": [p for p in parameters.values() if p.dim() > 1], "weight_decay": TRAIN.weight_decay},
        {"params": [p for p in parameters.values() if p.dim() <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=TRAIN.betas, eps=TRAIN.eps, **{kind: True})
    for step in range(1, 6):
        gradients = random_values(step)
        replica.layout.fill(replica.gradient, gradients)
        apply_adamw([replica], TRAIN, step, clip_factor, learning_rate(TRAIN, step))
        for name, parameter in parameters.items():
            parameter.grad = gradients[name] * clip_factor
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(TRAIN, step)
        optimizer.step()
        assert replica.step == step
        for name, view in replica.layout.views(replica.parameters).items():
            torch.testing.assert_close(view, parameters[name].detach(), rtol=1e-5, atol=1e-6)


def test_who_owns_what_does_not_change_a_bit() -> None:
    """One replica of everything, replicas of one parameter each in any order, and one alone: equal bits."""
    values, gradients = random_values(1), random_values(2)
    whole = replica_of(values)
    whole.layout.fill(whole.gradient, gradients)
    apart = {name: replica_of({name: value}) for name, value in values.items()}
    for name, replica in apart.items():
        replica.layout.fill(replica.gradient, {name: gradients[name]})
    for step in (1, 2):
        apply_adamw([whole], TRAIN, step, 0.5, learning_rate(TRAIN, step))
        apply_adamw([apart["scale"], apart["big"]], TRAIN, step, 0.5, learning_rate(TRAIN, step))
        apply_adamw([apart["b"], apart["w"]], TRAIN, step, 0.5, learning_rate(TRAIN, step))
    for name, replica in apart.items():
        assert torch.equal(replica.layout.views(replica.parameters)[name], whole.layout.views(whole.parameters)[name])


def test_a_replica_moved_in_between_goes_on_with_the_same_bits() -> None:
    stays, moves = replica_of(random_values(3)), replica_of(random_values(3))
    for step in range(1, 5):
        for replica in (stays, moves):
            replica.layout.fill(replica.gradient, random_values(10 + step))
            apply_adamw([replica], TRAIN, step, 1.0, learning_rate(TRAIN, step))
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
    apply_adamw([source], TRAIN, 1, 1.0, learning_rate(TRAIN, 1))
    for first, end in reversed(list(pairwise(cuts))):
        for own, given in zip(target.part(first, end, cuts[-1]), source.part(first, end, cuts[-1]), strict=True):
            own.copy_(given.clone())
    for own, given in zip(target.state, source.state, strict=True):
        assert torch.equal(own, given)


def test_the_layout_is_aligned_and_puts_what_decays_first() -> None:
    layout = Layout.of(spec_of(SHAPES))
    assert all(slot.offset % ALIGNMENT == 0 for slot in layout.slots)
    assert {slot.name for slot in layout.slots if slot.offset < layout.decay_end} == {"w", "big"}
    flat = torch.zeros(layout.size)
    layout.fill(flat, random_values(4))
    for name, view in layout.views(flat).items():
        assert torch.equal(view, random_values(4)[name])
    assert flat.count_nonzero() == sum(torch.Size(shape).numel() for shape in SHAPES.values()), "padding stays zero"


def test_nothing_owned_nothing_done() -> None:
    apply_adamw([], TRAIN, 1, 1.0, learning_rate(TRAIN, 1))
