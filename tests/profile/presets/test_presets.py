"""Presets: shapes against what is published, times against what physics allows, and one number that corrects them."""

from __future__ import annotations

import math

import msgspec
import pytest

from planaria.job.errors import UserError
from planaria.plan.costs.byte_counts import held_bytes, part_bytes
from planaria.plan.costs.model_profile import LayerCost, ModelProfile
from planaria.plan.costs.profile_check import decode_profile
from planaria.plan.plan import PlanError
from planaria.profile.calibrate import calibrated, microbatch_s
from planaria.profile.presets.devices import DEVICES
from planaria.profile.presets.presets import MODELS, preset
from planaria.profile.presets.shapes import num_parameters

EXACT_PARAMETERS = {
    # Counted by others: transformers (BERT for pre-training, GPT-2, Llama), torchvision (ResNet, VGG).
    "bert-large": 336_226_108,
    "gpt2-345m": 354_823_168,
    "gpt2-1.5b": 1_557_611_200,
    "llama2-7b": 6_738_415_616,
    "resnet-152": 60_192_808,
    "vgg-19": 143_667_240,
}
PUBLISHED_MULTIPLY_ADDS = {"resnet-152": 11.3e9, "vgg-19": 19.6e9, "alexnet": 0.72e9}
"""Of one image's forward."""


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_those_published(name: str) -> None:
    model = MODELS[name]
    counted = num_parameters(model.layers(1, model.sequence_length))
    assert counted == pytest.approx(model.published_parameters, rel=0.02)
    assert counted == EXACT_PARAMETERS.get(name, counted)


@pytest.mark.parametrize("name", PUBLISHED_MULTIPLY_ADDS)
def test_products_are_those_published(name: str) -> None:
    operations = [operation for layer in MODELS[name].layers(1, 0) for operation in layer.operations]
    assert sum(o.multiply_adds for o in operations) == pytest.approx(PUBLISHED_MULTIPLY_ADDS[name], rel=0.02)


def test_a_gpt_block_keeps_34_bytes_a_position_and_channel() -> None:
    """Korthikanti et al. (2022), section 4.1, without the scores, which fused attention does not keep."""
    cost = preset("gpt3-6.7b", "a100", numerics="mixed").layers[1]
    assert cost.activation_bytes == 34 * 2048 * 4096
    assert cost.recompute_activation_bytes == cost.output_bytes == 2 * 2048 * 4096
    cost = preset("gpt3-6.7b", "a100").layers[1]
    assert cost.activation_bytes == 36 * 2048 * 4096, "its input comes as float32"
    assert cost.recompute_activation_bytes == cost.output_bytes == 4 * 2048 * 4096


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model", MODELS)
def test_every_pair_makes_sense(model: str, device: str) -> None:
    """Whole by the checks of any file, never faster than the peak, and 24 bytes of state a parameter."""
    made = preset(model, device, device_counts=(1, 2, 4, 8))
    assert decode_profile(msgspec.json.encode(made)) == made
    shapes = MODELS[model].layers(made.microbatch_size, MODELS[model].sequence_length)
    for number, (shape, cost) in enumerate(zip(shapes, made.layers, strict=True)):
        products = sum(operation.multiply_adds for operation in shape.operations)
        least_s = 2 * products / DEVICES[device].peak_flop_per_s
        assert cost.on(1).forward_s > least_s
        assert cost.on(1).backward_s > (2 if number else 1) * least_s
        assert cost.state_bytes == 24 * shape.num_parameters
        for count in (2, 4, 8):
            assert cost.on(count).forward_s > least_s / count
    assert sum(group.size_bytes for group in made.groups) == 4 * num_parameters(shapes)


@pytest.mark.parametrize(
    ("numerics", "held", "sent", "moved"), [("exact", 24, 4, 12), ("fast", 20, 4, 12), ("mixed", 16, 2, 14)]
)
def test_bytes_a_parameter_are_those_of_the_numerics(numerics: str, held: int, sent: int, moved: int) -> None:
    made = preset("gpt2-345m", "a100", numerics=numerics)
    parameters = EXACT_PARAMETERS["gpt2-345m"]
    assert sum(sum(held_bytes(made, group)) for group in made.groups) == held * parameters
    assert sum(map(part_bytes, made.groups)) == sent * parameters
    assert sum(group.moved_bytes for group in made.groups) == moved * parameters
    apply_s = made.step.apply_s_per_byte * sent
    assert apply_s == pytest.approx(preset("gpt2-345m", "a100").step.apply_s_per_byte * 4), "28 bytes in either case"


@pytest.mark.parametrize("model", ["gpt3-2.7b", "gpt3-6.7b", "llama2-7b"])
def test_large_blocks_gain_from_more_devices(model: str) -> None:
    made = preset(model, "a100", device_counts=(2, 4, 8))
    block = made.layers[1]
    times = [block.on(count).forward_s + block.on(count).backward_s for count in made.device_counts]
    assert made.device_counts == (1, 2, 4, 8)
    assert times == sorted(times, reverse=True)
    assert times[0] / 8 < times[-1] < times[0] / 2


def test_a_faster_device_is_faster() -> None:
    for model in MODELS:
        slow, middle, fast = (microbatch_s(preset(model, device)) for device in ("t4", "v100", "h200"))
        assert slow > 2 * middle > 2 * fast


def test_what_is_asked_for_is_what_is_made() -> None:
    made = preset("gpt2-345m", "t4", microbatch_size=3, sequence_length=512, network_gbit_s=10)
    assert made.microbatch_size == 3
    assert made.layers[1].output_bytes == 4 * 3 * 512 * 1024
    assert made.links.between_nodes.bandwidth_bytes_per_s == 10e9 / 8
    longer = preset("gpt2-345m", "t4", microbatch_size=3, sequence_length=1024, network_gbit_s=10)
    # Attention grows with the square.
    assert longer.layers[1].on(1).forward_s > 2 * made.layers[1].on(1).forward_s - 1e-4
    assert microbatch_s(preset("resnet-152", "t4", microbatch_size=8)) < microbatch_s(preset("resnet-152", "t4"))


@pytest.mark.parametrize(
    ("model", "device", "options", "said"),
    [
        ("gpt2-345", "a100", {}, "Did you mean 'gpt2-345m'?"),
        ("gpt2-345m", "a10", {}, "Did you mean 'a100'?"),
        ("gpt2-345m", "a100", {"sequence_length": 1025}, "positions for 1024 tokens"),
        ("gpt2-345m", "a100", {"sequence_length": -1}, "Give a positive one"),
        ("vgg-19", "a100", {"sequence_length": 5}, "has no sequences"),
        ("vgg-19", "a100", {"microbatch_size": -1}, "microbatch of -1"),
        ("vgg-19", "a100", {"device_counts": (0, 2)}, "stage of 0 devices"),
        ("vgg-19", "a100", {"network_gbit_s": 0}, "network of 0"),
        ("vgg-19", "a100", {"numerics": "half"}, "There are exact, fast, mixed"),
    ],
)
def test_what_makes_no_sense_is_refused(model: str, device: str, options: dict[str, object], said: str) -> None:
    with pytest.raises(UserError) as refused:
        preset(model, device, **options)  # type: ignore[arg-type]
    assert said in str(refused.value)


def test_a_microbatch_that_fits_no_device_is_refused_with_the_layer() -> None:
    with pytest.raises(PlanError, match=r"layer 0 \(convolution.0\).*device.memory_bytes 16000000000"):
        preset("vgg-19", "t4", microbatch_size=4096)


@pytest.mark.parametrize("measured_s", [1e-3, 0.123, 45.0])
def test_calibration_reproduces_the_measured_number(measured_s: float) -> None:
    made = preset("bert-large", "v100", device_counts=(1, 4))
    corrected = calibrated(made, measured_s)
    assert microbatch_s(corrected) == pytest.approx(measured_s, rel=1e-12)
    assert f"one microbatch took {measured_s:g} s" in corrected.provenance
    factor = measured_s / microbatch_s(made)
    for before, after in zip(made.layers, corrected.layers, strict=True):
        for count in (1, 4):
            assert after.on(count).forward_s == pytest.approx(factor * before.on(count).forward_s)
            assert after.on(count).backward_s == pytest.approx(factor * before.on(count).backward_s)
        assert without_times(after) == without_times(before)
    assert (corrected.links, corrected.step, corrected.groups) == (made.links, made.step, made.groups)


def without_times(cost: LayerCost) -> LayerCost:
    return msgspec.structs.replace(cost, times=())


@pytest.mark.parametrize("measured_s", [0.0, -1.0, math.nan, math.inf])
def test_a_senseless_number_calibrates_nothing(measured_s: float) -> None:
    made: ModelProfile = preset("alexnet", "v100")
    with pytest.raises(UserError, match="more than 0"):
        calibrated(made, measured_s)
