"""Whether a profile makes sense: the one place that says what a bad one lacks, in words for its author.

Used for every profile that comes from outside. It never corrects a number, and reads nothing: bytes in, profile out.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec

from planaria.plan.costs.model_profile import FORMAT, Contention, LayerCost, LayerTimes, ModelProfile
from planaria.plan.plan import Group, PlanError

_BYTES = (
    "parameter_bytes",
    "gradient_bytes",
    "optimizer_bytes",
    "activation_bytes",
    "recompute_activation_bytes",
    "output_bytes",
    "workspace_bytes",
    "copy_bytes",
    "frozen_bytes",
)
_MOST_BYTES = 1 << 53
"""Largest bytes of one layer (9 petabytes), so that sums of hundreds of layers fit the planner's 64-bit numbers."""
_CORRECT = "Correct it, or measure the profile again by `planaria profile`."


def decode_profile(data: bytes) -> ModelProfile:
    """Decodes and checks a profile from its JSON; see docs/reference/profile-format.md.

    Where `groups` is left out, each layer with parameters is one.

    Raises:
        PlanError: it is not a profile, or one that makes no sense. One line: layer and field, value, remedy.
    """
    try:
        # Python's reader takes NaN and Infinity, which programs write though JSON knows neither: so the message can
        # name the layer that bears one.
        raw = json.loads(data, object_pairs_hook=_without_duplicates)
    except PlanError:
        raise
    except (ValueError, RecursionError) as error:
        raise PlanError(f"It is not a model profile, because not JSON: {error}. {_CORRECT}") from None
    if not isinstance(raw, dict):
        raise PlanError(f"It is not a model profile, but a JSON {type(raw).__name__}. {_CORRECT}")
    _check_format(raw.get("format", FORMAT))
    _check_group_fields(raw.get("groups"))
    try:
        profile = msgspec.convert(raw, ModelProfile)
    except (msgspec.ValidationError, OverflowError) as error:
        raise PlanError(f"{_explained(str(error), raw)} {_CORRECT}") from None
    return check_profile(_with_groups(profile))


def check_profile(profile: ModelProfile) -> ModelProfile:
    """Returns the same profile after checking that it makes sense.

    A layer's forward takes time, and so does each half of its backward, but for two: the first layer's input needs no
    gradient, and a layer without parameters has none of theirs.

    Raises:
        PlanError: one line that names the layer and the field, the value, and the remedy.
    """
    _check_format(profile.format)
    if profile.microbatch_size < 1:
        raise PlanError(f"microbatch_size is {profile.microbatch_size}; it counts samples, at least 1. {_CORRECT}")
    if not profile.layers:
        raise PlanError(f"The profile has no layers. {_CORRECT}")
    for number, layer in enumerate(profile.layers):
        _check_bytes(number, layer)
        _check_times(number, layer)
    _check_device_counts(profile.layers)
    _check_groups(profile)
    _check_rest(profile)
    _check_fits(profile)
    return profile


def _of(number: int, layer: LayerCost) -> str:
    return f"layer {number} ({' '.join(layer.name.split())})"


def _check_format(found: object) -> None:
    if found is True or found != FORMAT:
        raise PlanError(
            f"The profile is of format {found!r}, and this version of planaria reads format {FORMAT}. Write it again "
            "with this version, or use the version that wrote it."
        )


def _check_bytes(number: int, layer: LayerCost) -> None:
    if not layer.name:
        raise PlanError(f"layer {number}: name is empty. Give it the name that the model has for it.")
    for field in _BYTES:
        value = getattr(layer, field)
        if not 0 <= value <= _MOST_BYTES:
            raise PlanError(
                f"{_of(number, layer)}: {field} is {value}; bytes are 0 or more, and at most {_MOST_BYTES}. {_CORRECT}"
            )
    for field in ("gradient_bytes", "optimizer_bytes"):
        if getattr(layer, field) and not layer.parameter_bytes:
            raise PlanError(
                f"{_of(number, layer)}: {field} is {getattr(layer, field)} and parameter_bytes is 0; without "
                f"parameters there are neither gradients nor optimizer state. {_CORRECT}"
            )


def _check_times(number: int, layer: LayerCost) -> None:
    counts = [times.num_devices for times in layer.times]
    if not counts:
        raise PlanError(f"{_of(number, layer)}: times is empty. Give its times on 1 device.")
    if counts[0] < 1 or any(high <= low for low, high in pairwise(counts)):
        raise PlanError(
            f"{_of(number, layer)}: times are for {counts} devices; each number stands once, ascending, from 1 on. "
            f"{_CORRECT}"
        )
    for times in layer.times:
        _check_positive(number, layer, times)


def _check_positive(number: int, layer: LayerCost, times: LayerTimes) -> None:
    may_be_zero = {
        "forward_s": False,
        "backward_input_s": number == 0,
        "backward_weight_s": layer.parameter_bytes == 0,
        "split_s": True,
    }
    for field, zero in may_be_zero.items():
        value = getattr(times, field)
        if math.isfinite(value) and (value > 0 or (zero and value == 0)):
            continue
        raise PlanError(
            f"{_of(number, layer)}: {field} is {value} on {times.num_devices} device(s); it must be a finite number of "
            f"seconds, {'0 or more' if zero else 'more than 0'}. {_CORRECT}"
        )


def _check_device_counts(layers: Sequence[LayerCost]) -> None:
    """Checks that all layers have times for the same numbers of devices, 1 among them."""
    known: dict[int, int] = {}
    for number, layer in enumerate(layers):
        for times in layer.times:
            known.setdefault(times.num_devices, number)
    for number, layer in enumerate(layers):
        own = {times.num_devices for times in layer.times}
        if 1 not in own:
            raise PlanError(f"{_of(number, layer)}: there are no times on 1 device. Measure them too.")
        for count in sorted(known.keys() - own):
            other = known[count]
            raise PlanError(
                f"{_of(number, layer)}: there are no times on {count} devices, and {_of(other, layers[other])}"
                " has them. Measure them too, or leave them out of every layer."
            )


def _check_groups(profile: ModelProfile) -> None:
    sizes = [0] * profile.num_layers
    for number, group in enumerate(profile.groups):
        layers = list(group.layers)
        unknown = [layer for layer in layers if not 0 <= layer < profile.num_layers]
        if unknown:
            raise PlanError(
                f"group {number}: there is no layer {unknown[0]}; the profile has {profile.num_layers}, numbered from "
                f"0. {_CORRECT}"
            )
        if not layers or layers != sorted(set(layers)):
            raise PlanError(f"group {number}: its layers are {layers}; name one or more, ascending. {_CORRECT}")
        if group.size_bytes < 0:
            raise PlanError(
                f"group {number} of {_of(layers[0], profile.layers[layers[0]])}: size_bytes is {group.size_bytes}; "
                f"bytes are 0 or more. {_CORRECT}"
            )
        for layer in layers:
            sizes[layer] += group.size_bytes
    for at, (cost, size) in enumerate(zip(profile.layers, sizes, strict=True)):
        if size != cost.parameter_bytes:
            raise PlanError(
                f"{_of(at, cost)}: parameter_bytes is {cost.parameter_bytes}, and its groups have {size} bytes. "
                "Correct one of them, or leave groups out: each layer with parameters is then one."
            )


def _check_rest(profile: ModelProfile) -> None:
    """Checks the costs of links, the device and the step."""
    for name, link in profile.links.classes.items():
        if not math.isfinite(link.latency_s) or link.latency_s < 0:
            raise PlanError(f"links.{name}.latency_s is {link.latency_s}; seconds are 0 or more. {_CORRECT}")
        if not math.isfinite(link.bandwidth_bytes_per_s) or link.bandwidth_bytes_per_s <= 0:
            raise PlanError(
                f"links.{name}.bandwidth_bytes_per_s is {link.bandwidth_bytes_per_s}; it must be more than 0. "
                f"{_CORRECT}"
            )
    for name in ("memory_bytes", "process_bytes"):
        value = getattr(profile.device, name)
        if value < 0:
            raise PlanError(f"device.{name} is {value}; bytes are 0 or more. {_CORRECT}")
    overhead = profile.device.allocator_overhead
    if not math.isfinite(overhead) or overhead < 0:
        raise PlanError(f"device.allocator_overhead is {overhead}; it is a share, 0 or more. {_CORRECT}")
    for name in ("vote_s", "apply_s_per_byte", "sum_s_per_byte"):
        cost = getattr(profile.step, name)
        if not math.isfinite(cost) or cost < 0:
            raise PlanError(f"step.{name} is {cost}; it must be a finite number, 0 or more. {_CORRECT}")
    _check_contention(profile.contention)


def _check_contention(measured: Sequence[Contention]) -> None:
    counts = [each.num_devices for each in measured]
    if any(high <= low for low, high in pairwise([1, *counts])):
        raise PlanError(f"contention is of {counts} devices; each number stands once, ascending, from 2 on. {_CORRECT}")
    for each in measured:
        for name in ("compute", "update"):
            factor = getattr(each, name)
            if not math.isfinite(factor) or factor < 1:
                raise PlanError(
                    f"contention of {each.num_devices} devices: {name} is {factor}; it must be a finite number, 1 or "
                    f"more. {_CORRECT}"
                )


def _check_fits(profile: ModelProfile) -> None:
    """Checks that no layer is larger than the device memory of the largest stage."""
    memory = profile.device.memory_bytes
    if not memory:
        return
    count = profile.device_counts[-1]
    for number, layer in enumerate(profile.layers):
        shared = layer.state_bytes + layer.constant_bytes + layer.activation_bytes + layer.workspace_bytes
        needed = profile.device.process_bytes + -(-shared // count)
        if needed > memory:
            share = f"even its share on {count} devices" if count > 1 else "its state and one microbatch"
            raise PlanError(
                f"{_of(number, layer)}: {share} needs {needed} bytes (state_bytes {layer.state_bytes}, "
                f"copy_bytes {layer.copy_bytes}, frozen_bytes {layer.frozen_bytes}, "
                f"activation_bytes {layer.activation_bytes}, workspace_bytes {layer.workspace_bytes}), and "
                f"{profile.device.name or 'a device'} has device.memory_bytes {memory}. "
                "Use a smaller microbatch, cut the layer into smaller ones, or add times on more devices."
            )


# Files


def _with_groups(profile: ModelProfile) -> ModelProfile:
    if profile.groups:
        return profile
    groups = tuple(
        Group(layers=(number,), size_bytes=layer.parameter_bytes, optimizer_bytes=layer.optimizer_bytes)
        for number, layer in enumerate(profile.layers)
        if layer.parameter_bytes > 0
    )
    return msgspec.structs.replace(profile, groups=groups)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key in found if sum(key == other for other, _ in pairs) > 1)
        name = f"layer {found['name']!r}: " if isinstance(found.get("name"), str) else ""
        raise PlanError(f"{name}the field {twice!r} stands twice in one object. Remove one of the two.")
    return found


def _check_group_fields(groups: object) -> None:
    """Plans share the type of a group, and are laxer."""
    for number, group in enumerate(groups if isinstance(groups, list) else ()):
        unknown = sorted(group.keys() - set(Group.__struct_fields__)) if isinstance(group, dict) else []
        if unknown:
            known = ", ".join(Group.__struct_fields__)
            raise PlanError(f"group {number}: there is no field {unknown[0]!r}; known are {known}. {_CORRECT}")


def _explained(message: str, raw: dict[str, Any]) -> str:
    """Returns msgspec's "what - at `$.layers[3].times[0].forward_s`" with the layer's name and the value."""
    what, _, path = message.partition(" - at `$")
    steps: list[str | int] = [
        int(index) if index else name for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", path.removesuffix("`"))
    ]
    where = ".".join(str(step) for step in steps)
    if len(steps) >= 2 and steps[0] == "layers":
        where = f"layer {steps[1]}{_name(raw, steps[1])}"
        where += "".join(f", {step}" if isinstance(step, str) else f"[{step}]" for step in steps[2:])
    value = _value(raw, steps)
    shown = "" if isinstance(value, dict | list) or not steps else f" (it is {json.dumps(value)[:40]})"
    return f"{where or 'the profile'}: {what[:1].lower() + what[1:]}{shown}."


def _name(raw: dict[str, Any], number: str | int) -> str:
    layer = _value(raw, ["layers", number])
    name = layer.get("name") if isinstance(layer, dict) else None
    return f" ({name})" if isinstance(name, str) else ""


def _value(raw: Any, steps: Sequence[str | int]) -> Any:
    for step in steps:
        try:
            raw = raw[step]
        except (KeyError, IndexError, TypeError):
            return None
    return raw
