"""Sums of gradients: in exact numerics any order and grouping gives the same bits, whatever the numbers are."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from planaria.job.sections.train import Numerics, TrainSection
from planaria.model.model import GroupSpec, ParameterSpec
from planaria.runtime.thresholds import SMALL_FLOATS
from planaria.runtime.worker.compute.accumulator import (
    ADD_WITHIN,
    HEADROOM,
    Accumulator,
    Rounding,
    add_up,
    add_within_by_torch,
    squared_norm,
)
from planaria.runtime.worker.compute.device.device import HostDevice
from planaria.runtime.worker.compute.replica import Layout

CPU = HostDevice()
SHAPES = {"a.weight": (5, 7), "b.bias": (3,), "c.weight": (SMALL_FLOATS + 9,), "d.scale": ()}

Gradients = dict[str, torch.Tensor]


def spec_of(shapes: dict[str, tuple[int, ...]] = SHAPES) -> GroupSpec:
    return GroupSpec(
        layers=(0,),
        parameters=tuple(
            ParameterSpec(name=name, shape=shape, decays=len(shape) > 1, uses=((0, name),))
            for name, shape in sorted(shapes.items())
        ),
    )


LAYOUT = Layout.of(spec_of(), TrainSection(steps=1, global_batch=1, microbatch=1, sequence_length=1))
ROUNDING = Rounding(CPU)


def accumulator(contributions: int, exponent: int = 4, numerics: Numerics = Numerics.EXACT) -> Accumulator:
    made = Accumulator(LAYOUT, numerics, ROUNDING, contributions, CPU)
    made.reset(exponent)
    return made


def summed(parts: list[list[Gradients]], contributions: int, exponent: int = 4) -> tuple[torch.Tensor, float]:
    """The total of several owners' accumulators, each of which counts its list of gradients in order."""
    totals = []
    for part in parts:
        owner = accumulator(contributions, exponent)
        for gradients in part:
            owner.add(gradients)
        if not owner.is_empty:
            totals.append(owner.total)
    out = torch.full((LAYOUT.size,), math.nan)
    add_up(totals, out)
    return out, squared_norm(out)


def gradients_of(seed: int, *, scale: float = 1.0, missing: float = 0.0, extreme: bool = False) -> Gradients:
    draw = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, shape in SHAPES.items():
        if draw.random() < missing:
            continue
        value = torch.randn(shape, generator=generator) * scale
        if extreme:
            value = value * 2.0 ** torch.randint(-60, 60, shape, generator=generator)
        found[name] = value
    return found


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(1, 9),
    owners=st.integers(1, 4),
    missing=st.sampled_from([0.0, 0.3, 0.9]),
    extreme=st.booleans(),
    exponent=st.integers(-24, 30),
)
def test_order_and_grouping_do_not_change_a_bit(
    seed: int, count: int, owners: int, missing: float, extreme: bool, exponent: int
) -> None:
    draw = random.Random(seed)
    all_of_them = [gradients_of(seed + n, missing=missing, extreme=extreme) for n in range(count)]
    alone, norm = summed([all_of_them], count, exponent)
    shuffled = draw.sample(all_of_them, count)
    cuts = sorted(draw.randint(0, count) for _ in range(owners - 1))
    parts = [shuffled[begin:end] for begin, end in itertools.pairwise([0, *cuts, count])]
    together, other_norm = summed(parts, count, exponent)
    assert torch.equal(alone, together)
    assert norm == other_norm
    assert torch.isfinite(alone).all()


def test_ties_between_grid_points_are_rounded_alike_whatever_was_added_before() -> None:
    grid = 2.0 ** (4 + HEADROOM - 51)
    halves = [{name: torch.full(shape, (n + 0.5) * grid) for name, shape in SHAPES.items()} for n in range(-3, 4)]
    orders = [random.Random(seed).sample(halves, 7) for seed in range(40)]
    sums = {tuple(summed([order], 7)[0].tolist()[:4]) for order in orders}
    assert len(sums) == 1


def test_rounding_is_to_the_nearest_grid_point() -> None:
    values = gradients_of(3)
    exact, _ = summed([[values]], 1)
    for name, view in LAYOUT.views(exact).items():
        assert torch.allclose(view, values[name], rtol=1e-6, atol=2.0 ** (4 + HEADROOM - 51))


def test_a_contribution_beyond_its_share_is_cut_off_at_it() -> None:
    limit = 2.0 ** (4 + HEADROOM) / 2
    huge = {name: torch.full(shape, 1e30) for name, shape in SHAPES.items()}
    small = {name: torch.full(shape, -1.0) for name, shape in SHAPES.items()}
    for order in ([huge, small], [small, huge]):
        total, _ = summed([order], 2)
        for view in LAYOUT.views(total).values():
            assert torch.equal(view, torch.full_like(view, limit - 1.0))
    hugest = {name: torch.full(shape, -1e30) for name, shape in SHAPES.items()}
    total, _ = summed([[hugest], [hugest]], 2)
    for view in LAYOUT.views(total).values():
        assert torch.equal(view, torch.full_like(view, -2 * limit)), "the whole range is exact"


@pytest.mark.parametrize("numerics", Numerics)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("values", [(math.nan,), (math.inf,), (-math.inf,), (math.inf, -math.inf)])
def test_what_is_not_finite_is_not_cut_off(values: tuple[float, ...], name: str, numerics: Numerics) -> None:
    """And it outlasts what is added to it."""
    broken = gradients_of(1)
    flat = broken[name].reshape(-1)
    flat[: len(values)] = torch.tensor(values[: flat.numel()])
    for order in ([broken, gradients_of(2)], [gradients_of(2), broken]):
        owner = accumulator(2, numerics=numerics)
        for gradients in order:
            owner.add(gradients)
        out = torch.zeros(LAYOUT.size)
        add_up([owner.total], out)
        assert not math.isfinite(squared_norm(out))
        owner.reset(4)
        owner.add(gradients_of(3))
        add_up([owner.total], out)
        assert math.isfinite(squared_norm(out)), "the next step does not inherit it"


def test_a_parameter_without_gradient_adds_nothing_and_inherits_nothing() -> None:
    owner = accumulator(2)
    owner.add(gradients_of(1))
    owner.reset(4)
    some = {"a.weight": torch.ones(5, 7)}
    owner.add(some)
    owner.add({})
    views = LAYOUT.views(owner.total)
    assert torch.equal(views["a.weight"], torch.ones(5, 7, dtype=torch.float64))
    assert all(not view.any() for name, view in views.items() if name != "a.weight")
    owner.reset(4)
    assert owner.is_empty, "what an earlier step left is not counted"


def test_a_sum_to_which_nobody_added_is_zero() -> None:
    out = torch.ones(LAYOUT.size)
    add_up([], out)
    assert not out.any()


def test_the_norm_is_that_of_the_sum() -> None:
    parts = [[gradients_of(1)], [gradients_of(2)]]
    total, norm = summed(parts, 2)
    assert norm == pytest.approx(float(total.double().square().sum()), rel=1e-12)


def test_fast_numerics_is_plain_float32() -> None:
    owner = accumulator(3, numerics=Numerics.FAST)
    gradients = [gradients_of(seed) for seed in range(3)]
    for one in gradients:
        owner.add(one)
    assert owner.total.dtype is torch.float32
    for name, view in LAYOUT.views(owner.total).items():
        assert torch.equal(view, gradients[0][name] + gradients[1][name] + gradients[2][name])


def add_within_compiled(
    total: torch.Tensor, values: torch.Tensor, _: torch.Tensor, magic: float, limit: float, first: bool
) -> bool:
    return ADD_WITHIN.form(compiled=True)(total.numpy(), values.numpy(), magic, limit, first)


@pytest.mark.parametrize("exponent", [-40, 0, 12])
def test_values_that_need_no_cutting_off_are_looked_at_only(exponent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits as if they were cut off at the limit."""
    values = torch.randn(3 * SMALL_FLOATS, generator=torch.Generator().manual_seed(1)) * 2.0 ** (exponent + 4)
    totals = []
    for add_within in (add_within_by_torch, add_within_compiled, lambda *_: False):
        monkeypatch.setattr(ROUNDING, "_add_within", add_within)
        total = torch.zeros(values.numel(), dtype=torch.float64)
        for first in (True, False):
            ROUNDING.add(total, values, exponent=exponent, contributions=6, first=first)
        totals.append(total)
    assert torch.equal(totals[0], totals[1])
    assert torch.equal(totals[0], totals[2])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2.0**20, -(2.0**20)])
def test_a_value_beyond_the_limit_leaves_the_sum_to_whoever_cuts_it_off(value: float) -> None:
    for add_within in (add_within_by_torch, add_within_compiled):
        values, total = torch.ones(9), torch.full((9,), 5.0, dtype=torch.float64)
        values[7] = value
        assert not add_within(total, values, torch.zeros(9, dtype=torch.float64), 2.0**22, 2.0**18, False)
        assert (total == 5.0).all()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_value_that_is_not_finite_is_not_hidden(value: float) -> None:
    values = torch.ones(2 * SMALL_FLOATS)
    values[7] = value
    total = torch.zeros(values.numel(), dtype=torch.float64)
    ROUNDING.add(total, values, exponent=4, contributions=6, first=True)
    assert total.isnan().any()
