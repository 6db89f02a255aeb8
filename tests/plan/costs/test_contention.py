"""What devices of one host cost each other: times of a profile grow by what was measured, and nothing else does."""

from __future__ import annotations

import msgspec
import pytest

from planaria.plan.costs.model_profile import Contention, StepCosts
from planaria.plan.costs.profile_check import decode_profile
from planaria.plan.plan import PlanError
from tests.plan.profiles import uniform_profile

ALONE = msgspec.structs.replace(
    uniform_profile(3, tied=False), step=StepCosts(vote_s=1e-3, apply_s_per_byte=2e-9, sum_s_per_byte=3e-9)
)
MEASURED = msgspec.structs.replace(
    ALONE,
    contention=(
        Contention(num_devices=2, compute=1.1, update=1.5),
        Contention(num_devices=4, compute=1.3, update=2.5),
    ),
)


@pytest.mark.parametrize(("devices", "compute", "update"), [(2, 1.1, 1.5), (3, 1.2, 2.0), (4, 1.3, 2.5), (9, 1.3, 2.5)])
def test_costs_grow_evenly_between_measured_numbers(devices: int, compute: float, update: float) -> None:
    found = MEASURED.contended(devices)
    for layer, alone in zip(found.layers, ALONE.layers, strict=True):
        assert layer.on(1).forward_s == pytest.approx(compute * alone.on(1).forward_s)
        assert layer.on(1).backward_s == pytest.approx(compute * alone.on(1).backward_s)
        assert msgspec.structs.replace(layer, times=()) == msgspec.structs.replace(alone, times=())
    assert found.step.apply_s_per_byte == pytest.approx(update * ALONE.step.apply_s_per_byte)
    assert found.step.sum_s_per_byte == pytest.approx(update * ALONE.step.sum_s_per_byte)
    assert (found.step.vote_s, found.links, found.groups) == (ALONE.step.vote_s, ALONE.links, ALONE.groups)


def test_one_device_and_profiles_of_before_cost_what_they_did() -> None:
    assert MEASURED.contended(1) is MEASURED
    assert ALONE.contended(8) is ALONE
    before = msgspec.json.decode(msgspec.json.encode(ALONE))
    del before["contention"]
    assert decode_profile(msgspec.json.encode(before)) == ALONE
    assert decode_profile(msgspec.json.encode(MEASURED)) == MEASURED


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"num_devices": 1, "compute": 1.1, "update": 1.1}, r"contention is of \[1\] devices"),
        ({"num_devices": 2, "compute": 0.9, "update": 1.1}, r"contention of 2 devices: compute is 0\.9"),
        ({"num_devices": 2, "compute": 1.1, "update": 0.0}, r"contention of 2 devices: update is 0\.0"),
    ],
)
def test_contention_that_cannot_be_is_refused(entry: dict[str, float], told: str) -> None:
    profile = msgspec.json.decode(msgspec.json.encode(ALONE)) | {"contention": [entry]}
    with pytest.raises(PlanError, match=told):
        decode_profile(msgspec.json.encode(profile))


def test_devices_that_share_a_microbatch_take_the_times_of_so_many_or_a_part_each() -> None:
    one = ALONE.layers[0].times[0]
    two = msgspec.structs.replace(one.scaled(0.6), num_devices=2)
    layer = msgspec.structs.replace(ALONE.layers[0], times=(one, two))
    assert layer.shared_by(1) == one
    assert layer.shared_by(2) == two
    assert layer.shared_by(4) == one.scaled(0.25)
