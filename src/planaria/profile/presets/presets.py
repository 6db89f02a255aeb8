"""Profiles without a measurement: published models on published devices, by an analytic model.

The model, part by part (see docs/reference/profile-format.md for the reasons):

- Time of an operation, the larger of its products at the device's achieved rate and its bytes at the achieved memory
  bandwidth, and a launch for each kernel (the roofline model; Williams et al., 2009).
- Backward of an operation with weights: its products once for the input's gradient, once for the weights'. Without
  weights: products twice (both operands need a gradient), half as many bytes again.
- A stage of d devices: work over d, and what they exchange, the cheaper of two ways: weights and gradients sharded
  (FSDP: gathered in forward and backward, gradients scattered), or products cut (tensor parallelism: sums of
  activations, where the layer can be cut so). Nothing of it is hidden behind compute.
- Products in half precision. What a worker holds and sends is `planaria.plan.costs.byte_counts`'s to say: of Planaria's
  own, with exact or fast numerics; or (`mixed`) of published systems, for comparisons with their papers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from difflib import get_close_matches

from planaria.job.errors import UserError
from planaria.job.version import __version__
from planaria.plan.costs.byte_counts import EXACT, NUMERICS, ValueBytes
from planaria.plan.costs.model_profile import (
    DeviceKind,
    LayerCost,
    LayerTimes,
    LinkCost,
    Links,
    ModelProfile,
    StepCosts,
)
from planaria.plan.costs.profile_check import check_profile
from planaria.plan.plan import Group
from planaria.profile.presets.convolutions import CONVOLUTIONAL, RECURRENT
from planaria.profile.presets.devices import DEVICES, DeviceFigures
from planaria.profile.presets.shapes import LayerShape, ModelShape, Operation
from planaria.profile.presets.transformers import TRANSFORMERS

MODELS: dict[str, ModelShape] = {**TRANSFORMERS, **CONVOLUTIONAL, **RECURRENT}

VALUE_BYTES = 2
"""Of a value where layers compute, whatever holds the parameters."""


MEMORY_SHARE = 0.75
"""Share of the peak memory bandwidth that kernels reach."""

LINK_SHARE = 0.8
"""Share of a link's peak bandwidth that messages reach."""

LAUNCH_S = 4e-6
"""Least seconds of a kernel, whatever it does."""

PROCESS_BYTES = 1_000_000_000
"""Bytes of context, libraries and communication buffers of a process on a device."""

VOTE_S = 4e-4
"""Seconds from the last vote to the commit, by 7 workers on one machine (benchmarks/commit_latency.py)."""

DEFAULT_NETWORK_GBIT_S = 80.0
"""Gbit/s that messages reach of a network of 100."""
NETWORK_LATENCY_S = 30e-6


def preset(
    model: str,
    device: str,
    *,
    microbatch_size: int = 0,
    sequence_length: int = 0,
    device_counts: Sequence[int] = (1,),
    network_gbit_s: float = DEFAULT_NETWORK_GBIT_S,
    numerics: str = "exact",
) -> ModelProfile:
    """Returns the profile of a published model on a published device.

    Args:
        model: a key of `MODELS`.
        device: a key of `DEVICES`.
        microbatch_size: samples; 0: the model's default.
        sequence_length: tokens of a sample; 0: the model's default.
        device_counts: of a stage; 1 is always among them.
        network_gbit_s: that messages between nodes reach, in gigabits (10**9 bits) a second, one direction.
        numerics: a key of `NUMERICS`: what is held and sent.

    Raises:
        UserError: an unknown name, or a number that makes no sense.
        PlanError: a layer of such microbatches does not fit on the device.
    """
    return computed(
        model,
        MODELS[_known(model, MODELS, "preset")],
        device,
        microbatch_size=microbatch_size,
        sequence_length=sequence_length,
        device_counts=device_counts,
        network_gbit_s=network_gbit_s,
        values=NUMERICS[_known(numerics, NUMERICS, "numerics")],
    )


def computed(
    model: str,
    shape: ModelShape,
    device: str,
    *,
    microbatch_size: int = 0,
    sequence_length: int = 0,
    device_counts: Sequence[int] = (1,),
    network_gbit_s: float = DEFAULT_NETWORK_GBIT_S,
    values: ValueBytes = EXACT,
) -> ModelProfile:
    """Returns the profile of a model of this name and shape; see `preset`."""
    figures = DEVICES[_known(device, DEVICES, "device")]
    microbatch_size = microbatch_size or shape.microbatch_size
    sequence_length = _sequence_length(model, shape, sequence_length)
    if microbatch_size < 1:
        raise UserError(f"a microbatch of {microbatch_size} samples makes no sense. Give 1 or more.")
    if not 0 < network_gbit_s < float("inf"):
        raise UserError(f"a network of {network_gbit_s} Gbit/s makes no sense. Give more than 0.")
    counts = sorted({1, *device_counts})
    if counts[0] < 1:
        raise UserError(f"a stage of {counts[0]} devices makes no sense. Give 1 or more.")
    shapes = shape.layers(microbatch_size, sequence_length)
    costs = tuple(_cost(layer, figures, counts, values, is_first=number == 0) for number, layer in enumerate(shapes))
    profile = ModelProfile(
        name=model,
        microbatch_size=microbatch_size,
        layers=costs,
        groups=_groups(shapes, values),
        links=Links(
            within_node=_within_node(figures),
            between_nodes=LinkCost(latency_s=NETWORK_LATENCY_S, bandwidth_bytes_per_s=network_gbit_s * 1e9 / 8),
        ),
        device=DeviceKind(name=figures.title, memory_bytes=figures.memory_bytes, process_bytes=PROCESS_BYTES),
        step=_step(figures, values),
        provenance=_provenance(shape, figures, values, sequence_length, network_gbit_s),
    )
    return check_profile(profile)


def _known(name: str, table: Collection[str], what: str) -> str:
    if name in table:
        return name
    close = get_close_matches(name, table, n=1, cutoff=0.5)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise UserError(f"{what} {name!r} is not known.{hint} There are {', '.join(table)}.")


def _sequence_length(model: str, shape: ModelShape, given: int) -> int:
    if given and not shape.sequence_length:
        raise UserError(f"{model} has no sequences, and the sequence length is {given}. Leave it out.")
    if given < 0 or (shape.longest_sequence and given > shape.longest_sequence):
        raise UserError(
            f"{model} has positions for {shape.longest_sequence or 'any number of'} tokens, and the sequence length is "
            f"{given}. Give {'a positive one' if given < 0 else 'a shorter one'}."
        )
    return given or shape.sequence_length


# Time


def _cost(
    layer: LayerShape, figures: DeviceFigures, counts: Sequence[int], values: ValueBytes, *, is_first: bool
) -> LayerCost:
    parameters = layer.num_parameters
    kept = sum(operation.kept for operation in layer.operations)
    taken = min(kept, layer.input_values)
    widest = max(operation.moved for operation in layer.operations)
    return LayerCost(
        name=layer.name,
        times=tuple(_times(layer, figures, count, is_first=is_first) for count in counts),
        parameter_bytes=values.parameter * parameters,
        gradient_bytes=values.gradient * parameters,
        optimizer_bytes=values.optimizer * parameters,
        # The layer's input is as it came.
        activation_bytes=round(values.computed * (kept - taken) + values.boundary * taken),
        recompute_activation_bytes=round(values.boundary * layer.input_values),
        output_bytes=round(values.boundary * layer.output_values),
        # One microbatch's gradients, and the gradients around the widest operation.
        workspace_bytes=round(values.in_layer * parameters + values.computed * widest),
    )


def _times(layer: LayerShape, figures: DeviceFigures, count: int, *, is_first: bool) -> LayerTimes:
    forward_s = sum(_forward_s(operation, figures, count) for operation in layer.operations)
    # Only the layer's first operation lacks an input that needs a gradient.
    inner = layer.operations[1:] if is_first else layer.operations
    input_s = 0.0 if is_first else sum(_input_s(operation, figures, count) for operation in inner)
    weight_s = sum(_weight_s(operation, figures, count) for operation in layer.operations)
    if is_first:
        weight_s += sum(_input_s(operation, figures, count) for operation in inner)
    exchanged_forward_s, exchanged_backward_s = _exchange_s(layer, figures, count)
    if layer.num_parameters:
        return LayerTimes(
            num_devices=count,
            forward_s=forward_s + exchanged_forward_s,
            backward_input_s=input_s if is_first else input_s + exchanged_backward_s / 2,
            backward_weight_s=weight_s + (exchanged_backward_s if is_first else exchanged_backward_s / 2),
        )
    return LayerTimes(num_devices=count, forward_s=forward_s, backward_input_s=input_s, backward_weight_s=0.0)


def _kernel_s(figures: DeviceFigures, multiply_adds: float, values: float, launches: int, count: int) -> float:
    products_s = 2 * multiply_adds / (figures.efficiency * figures.peak_flop_per_s)
    moved_s = VALUE_BYTES * values / (MEMORY_SHARE * figures.memory_bytes_per_s)
    return max(products_s, moved_s) / count + launches * LAUNCH_S


def _forward_s(operation: Operation, figures: DeviceFigures, count: int) -> float:
    values = operation.moved + operation.weights * operation.weight_reads
    return _kernel_s(figures, operation.multiply_adds, values, operation.launches, count)


def _input_s(operation: Operation, figures: DeviceFigures, count: int) -> float:
    if operation.weights and operation.multiply_adds:
        return _forward_s(operation, figures, count)
    return _kernel_s(figures, 2 * operation.multiply_adds, 1.5 * operation.moved, operation.launches, count)


def _weight_s(operation: Operation, figures: DeviceFigures, count: int) -> float:
    """Returns seconds of the weights' gradients of all positions at once, and of adding them to the accumulator."""
    if not operation.weights:
        return 0.0
    values = operation.moved + 3 * operation.weights
    return _kernel_s(figures, operation.multiply_adds, values, 1, count)


def _exchange_s(layer: LayerShape, figures: DeviceFigures, count: int) -> tuple[float, float]:
    """Returns seconds of a layer's exchange among `count` devices, forward and backward: the cheaper of two ways."""
    if count == 1:
        return 0.0, 0.0
    link = _within_node(figures)
    share = (count - 1) / count

    def ring_s(values: float) -> float:
        """Returns seconds in which every device gets (or gives) all but its share, in count - 1 turns."""
        return (count - 1) * link.latency_s + share * VALUE_BYTES * values / link.bandwidth_bytes_per_s

    gathered_s = ring_s(layer.num_parameters)
    sharded = (gathered_s, 2 * gathered_s)
    if not layer.exchanged_values:
        return sharded
    cut_s = 2 * ring_s(layer.exchanged_values)
    return min(sharded, (cut_s, cut_s), key=sum)


# The rest


def _within_node(figures: DeviceFigures) -> LinkCost:
    return LinkCost(latency_s=figures.link_latency_s, bandwidth_bytes_per_s=LINK_SHARE * figures.link_bytes_per_s)


def _groups(layers: Sequence[LayerShape], values: ValueBytes) -> tuple[Group, ...]:
    groups = [
        _group((number,), layer.num_parameters - layer.tied_parameters, values)
        for number, layer in enumerate(layers)
        if layer.num_parameters > layer.tied_parameters
    ]
    if layers[0].tied_parameters:
        groups.append(_group((0, len(layers) - 1), layers[0].tied_parameters, values))
    return tuple(groups)


def _group(layers: tuple[int, ...], num_parameters: int, values: ValueBytes) -> Group:
    return Group(
        layers=layers,
        size_bytes=values.parameter * num_parameters,
        optimizer_bytes=values.optimizer * num_parameters,
    )


def _step(figures: DeviceFigures, values: ValueBytes) -> StepCosts:
    per_byte_s = 1 / (MEMORY_SHARE * figures.memory_bytes_per_s)
    return StepCosts(
        vote_s=VOTE_S,
        apply_s_per_byte=values.updated / values.parameter * per_byte_s,
        sum_s_per_byte=values.added / values.parameter * per_byte_s,
    )


def _provenance(
    shape: ModelShape, figures: DeviceFigures, values: ValueBytes, sequence_length: int, network_gbit_s: float
) -> str:
    parts = [
        f"analytic model of planaria {__version__}, not measured",
        f"shapes: {shape.source}" + (f" ({shape.remarks})" if shape.remarks else ""),
        f"device: {figures.source}",
        f"sequence length {sequence_length}" if sequence_length else "",
        f"products at {figures.efficiency:.0%} of the peak, memory at {MEMORY_SHARE:.0%}",
        f"links within a node at {LINK_SHARE:.0%}",
        f"{LAUNCH_S * 1e6:.0f} us a kernel",
        f"messages between nodes at {network_gbit_s:g} Gbit/s",
        f"half precision; {values.state} bytes a parameter are held, {values.parameter} travel of its gradient",
        f"{values.boundary} bytes a value between layers",
    ]
    return "; ".join(part for part in parts if part)
