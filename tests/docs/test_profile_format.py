"""docs/reference/profile-format.md: its example is a profile, and it describes every field there is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from planaria.plan.costs.model_profile import (
    DeviceKind,
    LayerCost,
    LayerTimes,
    LinkCost,
    Links,
    ModelProfile,
    StepCosts,
)
from planaria.plan.costs.profile_check import decode_profile
from planaria.plan.plan import Group

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "profile-format.md").read_text()


def test_the_example_is_a_whole_profile_with_every_field() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    profile = decode_profile(example.encode())
    assert json.loads(msgspec.json.encode(profile)) == json.loads(example)


@pytest.mark.parametrize("part", [ModelProfile, LayerCost, LayerTimes, Links, LinkCost, DeviceKind, StepCosts, Group])
def test_every_field_is_described(part: type[msgspec.Struct]) -> None:
    for field in part.__struct_fields__:
        assert re.search(rf"`(\w+\.)?{field}`", PAGE), field
