"""A profile from outside: what is whole comes through unchanged, and every damage is refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planaria.plan.costs.model_profile import (
    DeviceKind,
    LayerCost,
    LayerTimes,
    LinkCost,
    Links,
    ModelProfile,
    StepCosts,
)
from planaria.plan.costs.profile_check import check_profile, decode_profile
from planaria.plan.plan import Group, PlanError
from tests.proof import examples

BYTES = st.integers(1, 1 << 40)
SECONDS = st.floats(1e-9, 1e3)
NAMES = st.from_regex(r"\A[a-z]{1,6}[.][0-9]{1,3}\Z")


@st.composite
def profiles(draw: st.DrawFn) -> ModelProfile:
    """Any whole profile: layers with and without parameters, tied groups, several numbers of devices."""
    num_layers = draw(st.integers(1, 6))
    counts = sorted({1, *draw(st.lists(st.integers(2, 8), max_size=3))})
    groups = [
        Group(layers=(layer,), size_bytes=draw(BYTES))
        for layer in draw(st.lists(st.integers(0, num_layers - 1), unique=True))
    ]
    if num_layers > 1 and draw(st.booleans()):
        groups.append(Group(layers=(0, num_layers - 1), size_bytes=draw(BYTES)))
    layers = []
    for number in range(num_layers):
        parameters = sum(group.size_bytes for group in groups if number in group.layers)
        layers.append(
            LayerCost(
                name=draw(NAMES),
                times=tuple(
                    LayerTimes(
                        num_devices=count,
                        forward_s=draw(SECONDS),
                        backward_input_s=draw(SECONDS) if number or draw(st.booleans()) else 0.0,
                        backward_weight_s=draw(SECONDS) if parameters else 0.0,
                    )
                    for count in counts
                ),
                parameter_bytes=parameters,
                gradient_bytes=parameters,
                optimizer_bytes=6 * parameters,
                activation_bytes=draw(BYTES),
                recompute_activation_bytes=draw(BYTES),
                output_bytes=draw(BYTES),
                workspace_bytes=draw(BYTES),
                copy_bytes=draw(BYTES),
                frozen_bytes=draw(BYTES),
            )
        )
    link = LinkCost(latency_s=draw(SECONDS), bandwidth_bytes_per_s=draw(SECONDS))
    return ModelProfile(
        name=draw(st.text(max_size=8)),
        microbatch_size=draw(st.integers(1, 64)),
        layers=tuple(layers),
        groups=tuple(groups),
        links=Links(within_node=link, between_nodes=link),
        device=DeviceKind(name=draw(st.text(max_size=8)), process_bytes=draw(BYTES)),
        step=StepCosts(vote_s=draw(SECONDS), apply_s_per_byte=draw(SECONDS), sum_s_per_byte=draw(SECONDS)),
        provenance=draw(st.text(max_size=8)),
    )


def as_json(profile: ModelProfile) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(msgspec.json.encode(profile))
    return decoded


def refusal(raw: Any) -> str:
    with pytest.raises(PlanError) as refused:
        decode_profile(json.dumps(raw).encode())
    message = str(refused.value)
    assert "\n" not in message
    return message


@settings(max_examples=examples(100), deadline=None)
@given(profile=profiles())
def test_a_whole_profile_comes_through_unchanged(profile: ModelProfile) -> None:
    assume(profile.groups)
    assert check_profile(profile) is profile
    assert decode_profile(msgspec.json.encode(profile)) == profile
    assert decode_profile(msgspec.json.format(msgspec.json.encode(profile), indent=2)) == profile


@settings(max_examples=examples(50), deadline=None)
@given(profile=profiles())
def test_without_groups_each_layer_with_parameters_is_one(profile: ModelProfile) -> None:
    raw = as_json(profile)
    del raw["groups"]
    read = decode_profile(json.dumps(raw).encode())
    expected = [(n, layer.parameter_bytes) for n, layer in enumerate(profile.layers) if layer.parameter_bytes]
    assert [(group.layers[0], group.size_bytes) for group in read.groups] == expected
    assert read.layers == profile.layers


TIMES = ("forward_s", "backward_input_s", "backward_weight_s")
SIZES = [field for field in LayerCost.__struct_fields__ if field.endswith("_bytes")]
DEFAULTED = ("workspace_bytes", "copy_bytes", "frozen_bytes")
NO_NUMBER = st.sampled_from([float("nan"), float("inf"), -float("inf"), -1e-9, -1, "1", None, True, [], {}])


@st.composite
def damaged_layers(draw: st.DrawFn) -> tuple[dict[str, Any], int, str]:
    """A profile with one damage in one layer: its JSON, the layer, and the field that must be named."""
    raw = as_json(draw(profiles()))
    at = draw(st.integers(0, len(raw["layers"]) - 1))
    layer = raw["layers"][at]
    times = draw(st.sampled_from(layer["times"]))

    def bad_time() -> str:
        field = draw(st.sampled_from(TIMES))
        times[field] = draw(NO_NUMBER)
        return field

    def no_time() -> str:
        field = "forward_s" if at == 0 or draw(st.booleans()) else "backward_input_s"
        if layer["parameter_bytes"] and draw(st.booleans()):
            field = "backward_weight_s"
        times[field] = draw(st.sampled_from([0, 0.0, -0.0]))
        return field

    def bad_size() -> str:
        field = draw(st.sampled_from(SIZES))
        layer[field] = draw(st.sampled_from([-1, 1.5, "1", None, 1 << 60, float("nan")]))
        return field

    def unknown_field() -> str:
        draw(st.sampled_from([layer, times]))["forward_ms"] = 1.0
        return "forward_ms"

    def missing_field() -> str:
        thing, fields = draw(
            st.sampled_from([(times, TIMES), (layer, [s for s in SIZES if s not in DEFAULTED] + ["times"])])
        )
        field = draw(st.sampled_from(fields))
        del thing[field]
        return field

    def stateless_gradients() -> str:
        layer["parameter_bytes"] = 0
        layer["gradient_bytes"] = 7
        return "gradient_bytes"

    def other_parameters() -> str:
        layer["parameter_bytes"] += 4
        for entry in layer["times"]:
            entry["backward_weight_s"] = 1.0
        if not raw["groups"]:
            raw["groups"] = [{"layers": [0], "size_bytes": 1 << 50}]
        return "parameter_bytes" if raw["groups"][0]["size_bytes"] < 1 << 50 else ""

    def no_times() -> str:
        layer["times"] = []
        return "times"

    def double_times() -> str:
        layer["times"].append(layer["times"][-1])
        return "times"

    def lacking_times() -> str:
        del layer["times"][draw(st.integers(0, len(layer["times"]) - 1))]
        return "times" if len(raw["layers"]) > 1 or not layer["times"] else ""

    def more_times() -> str:
        layer["times"].append({**layer["times"][-1], "num_devices": 9})
        return "no times on 9 devices" if len(raw["layers"]) > 1 else ""

    damages: list[Callable[[], str]] = [bad_time, no_time, bad_size, unknown_field, missing_field]
    damages += [stateless_gradients, other_parameters, no_times, double_times, lacking_times, more_times]
    field = draw(st.sampled_from(damages))()
    assume(field)
    return raw, at, field


@settings(max_examples=examples(250), deadline=None)
@given(damaged=damaged_layers())
def test_every_damage_of_a_layer_is_refused_with_its_name_and_the_field(
    damaged: tuple[dict[str, Any], int, str],
) -> None:
    raw, at, field = damaged
    message = refusal(raw)
    assert f"layer {at} ({raw['layers'][at]['name']})" in message
    assert field in message


def whole() -> dict[str, Any]:
    layer = {
        "name": "block",
        "times": [{"forward_s": 1.0, "backward_input_s": 1.0, "backward_weight_s": 1.0}],
        **dict.fromkeys(SIZES, 8),
    }
    link = {"latency_s": 1e-3, "bandwidth_bytes_per_s": 1e9}
    return {
        "layers": [layer, layer],
        "groups": [{"layers": [0], "size_bytes": 8}, {"layers": [1], "size_bytes": 8}],
        "links": {"within_node": link, "between_nodes": dict(link)},
        "device": {"name": "cpu"},
        "step": {},
    }


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("format", 2, "format 2"),
        ("format", True, "format True"),
        ("microbatch_size", 0, "microbatch_size is 0"),
        ("layers", [], "no layers"),
        ("layers", None, "layers: expected `array`, got `null`"),
        ("colour", 1, "unknown field `colour`"),
        ("links.within_node.latency_s", -1, "links.within_node.latency_s is -1"),
        ("links.between_nodes.bandwidth_bytes_per_s", 0, "links.between_nodes.bandwidth_bytes_per_s is 0"),
        ("links.within_node.bandwidth_bytes_per_s", float("inf"), "bandwidth_bytes_per_s is inf"),
        ("links.within_node.bandwidth", 1, "unknown field `bandwidth`"),
        ("device.memory_bytes", -1, "device.memory_bytes is -1"),
        ("device.process_bytes", -1, "device.process_bytes is -1"),
        ("device.allocator_overhead", -0.1, "device.allocator_overhead is -0.1"),
        ("step.vote_s", float("nan"), "step.vote_s is nan"),
        ("step.sum_s_per_byte", -1.0, "step.sum_s_per_byte is -1.0"),
        ("groups.0.layers", [2], "there is no layer 2; the profile has 2"),
        ("groups.0.layers", [-1], "there is no layer -1"),
        ("groups.0.layers", [], "its layers are []"),
        ("groups.0.layers", [0, 0], "its layers are [0, 0]"),
        ("groups.0.size_bytes", -8, "layer 0 (block): size_bytes is -8"),
        ("groups.0.size_bytes", 9, "layer 0 (block): parameter_bytes is 8, and its groups have 9"),
        ("groups.0.weight", 9, "no field 'weight'"),
    ],
)
def test_damages_beside_the_layers_are_refused_by_field(path: str, value: object, said: str) -> None:
    raw = whole()
    decode_profile(json.dumps(raw).encode())
    *way, last = path.split(".")
    place: Any = raw
    for step in way:
        place = place[int(step)] if isinstance(place, list) else place[step]
    place[last] = value
    assert said in refusal(raw)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "a JSON list"),
        (b'{"name": 1, "name": 2}', "'name' stands twice"),
        (b"{}", "missing required field `layers`"),
    ],
)
def test_what_is_no_profile_at_all_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        decode_profile(data)


def test_a_layer_that_fits_no_device_is_named() -> None:
    """State, constants, activations, workspace and the process are 76 bytes; d devices share all but the process."""
    raw = whole()
    raw["layers"][1] = {**raw["layers"][1], "name": "head", "optimizer_bytes": 20}
    raw["device"] = {"name": "small", "process_bytes": 8, "memory_bytes": 76}
    decode_profile(json.dumps(raw).encode())
    raw["device"]["memory_bytes"] = 75
    message = refusal(raw)
    assert "layer 1 (head)" in message
    assert "needs 76 bytes" in message
    assert "small has device.memory_bytes 75" in message
    for layer in raw["layers"]:
        layer["times"] = [{**layer["times"][0], "num_devices": count} for count in (1, 2)]
    raw["device"]["memory_bytes"] = 42
    decode_profile(json.dumps(raw).encode())
    raw["device"]["memory_bytes"] = 41
    assert "share on 2 devices needs 42 bytes" in refusal(raw)
