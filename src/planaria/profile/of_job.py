"""The costs of a job without a measurement: the analytic model of presets, on the shape that its config gives.

For plans of GPU clusters on machines without a GPU. A tokenizer that is not there
is taken to fit the model's config.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from planaria.checkpoint.weights import with_weights_here
from planaria.job.errors import UserError
from planaria.job.sections.cluster import Device
from planaria.job.sections.train import DType
from planaria.job.settings import Job
from planaria.job.values import is_function
from planaria.model.training.optimizer import value_bytes
from planaria.plan.costs.byte_counts import ValueBytes
from planaria.plan.costs.model_profile import LayerCost, ModelProfile
from planaria.plan.costs.profile_check import check_profile
from planaria.plan.plan import Group
from planaria.profile.presets.presets import computed
from planaria.profile.presets.shapes import ModelShape
from planaria.profile.presets.transformers import Transformer

if TYPE_CHECKING:
    from planaria.model.huggingface import HuggingFaceModel

ASSUMED_DEVICE = "a100"
"""Device that is assumed where none is given."""

_FROZEN_BYTES = 4
"""Bytes of a parameter that is not trained: float32, as a worker holds it."""

_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Paths on a machine with a GPU that torch can use: NVIDIA's driver, AMD's, or the one of Windows' subsystem."""


def lacks_device(job: Job) -> bool:
    """Returns whether the job computes on GPUs, and this machine has none to measure on."""
    return job.cluster.device is Device.CUDA and not any(Path(driver).exists() for driver in _DRIVERS)


def profile_of_job(job: Job, device: str) -> ModelProfile:
    """Returns the profile of the job's layers on a published device, one device a stage.

    Raises:
        UserError: the device is not known, the model is a function, or the data are a dataset.
        ModelError, DataError: the config is not one of the model's type, or the tokenizer that is there is none.
    """
    if is_function(job.model.type):
        raise UserError(
            f"model.type = {job.model.type!r} is a function, and costs are computed for Hugging Face models only. "
            "Plan on a machine with the job's device, or give the costs by --profile FILE."
        )
    if not job.train.sequence_length:
        raise UserError(
            f"data.source = {job.data.source!r} is a dataset, and costs are computed for sequences of tokens only. "
            "Set train.sequence_length, plan on a machine with the job's device, or give the costs by --profile FILE."
        )
    from planaria.data.tokens.tokenizer import BYTES, load_tokenizer
    from planaria.model.load import load_huggingface_model

    tokenizer = job.data.tokenizer
    vocab_size = load_tokenizer(tokenizer).vocab_size if tokenizer == BYTES or Path(tokenizer).is_file() else None
    model = load_huggingface_model(with_weights_here(job).model, job.train, vocab_size=vocab_size)
    shape = ModelShape(
        title=job.model.type,
        layers=_transformer(job, model).layers,
        microbatch_size=job.train.microbatch,
        sequence_length=job.train.sequence_length,
        published_parameters=0,
        source="model.config",
    )
    values = _values(job)
    profile = computed(job.model.type, shape, device, values=values)
    return _partly_trained(profile, model, values) if model.frozen else profile


def _partly_trained(profile: ModelProfile, model: HuggingFaceModel, values: ValueBytes) -> ModelProfile:
    """Returns the profile of a model of which some parameters are frozen: no gradients of theirs, no state, no sums.

    A layer's weight gradients take the share of the parameters that are trained. What adapters add is not counted.
    """
    num_layers = len(profile.layers)
    if len(model.layer_names) != num_layers:
        raise UserError(
            f"model.type = {model.config.model_type!r}: costs are computed of {num_layers} layers, and with the "
            f"parameters that are not trained it has {len(model.layer_names)}. Plan on a machine with the job's "
            "device, or give the costs by --profile FILE."
        )
    trained, frozen = [0] * num_layers, [0] * num_layers
    groups = []
    for group in model.groups:
        number = sum(math.prod(spec.shape) for spec in group.parameters)
        for layer in group.layers:
            trained[layer] += number
        optimizer_bytes = 0 if group.is_statistics else values.optimizer * number
        groups.append(Group(layers=group.layers, size_bytes=values.parameter * number, optimizer_bytes=optimizer_bytes))
    for spec in model.frozen:
        for layer in {layer for layer, _ in spec.uses}:
            frozen[layer] += math.prod(spec.shape)
    layers = tuple(
        _partly_trained_layer(cost, trained[number], frozen[number], values)
        for number, cost in enumerate(profile.layers)
    )
    told = f"{profile.provenance}; {sum(trained):,} parameters of {sum(trained) + sum(frozen):,} are trained"
    return check_profile(msgspec.structs.replace(profile, layers=layers, groups=tuple(groups), provenance=told))


def _partly_trained_layer(cost: LayerCost, trained: int, frozen: int, values: ValueBytes) -> LayerCost:
    share = trained / (trained + frozen) if trained + frozen else 1.0
    times = tuple(msgspec.structs.replace(one, backward_weight_s=share * one.backward_weight_s) for one in cost.times)
    return msgspec.structs.replace(
        cost,
        times=times,
        parameter_bytes=values.parameter * trained,
        gradient_bytes=values.gradient * trained,
        optimizer_bytes=values.optimizer * trained,
        workspace_bytes=max(0, cost.workspace_bytes - round(values.in_layer * frozen)),
        frozen_bytes=_FROZEN_BYTES * frozen,
    )


def _values(job: Job) -> ValueBytes:
    values = value_bytes(job.train)
    return replace(values, boundary=values.computed) if job.train.boundary_dtype is DType.BFLOAT16 else values


def _transformer(job: Job, model: HuggingFaceModel) -> Transformer:
    """Returns the shape of a stack of equal transformer blocks. Raises UserError: the model is another."""
    config, names = model.config, [*_names(model)]
    counted = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    if config.is_encoder_decoder or not all(hasattr(config, name) for name in counted) or _any("expert", names):
        raise UserError(
            f"model.type = {job.model.type!r}: costs are computed for stacks of equal transformer blocks only. "
            "Plan on a machine with the job's device, or give the costs by --profile FILE."
        )
    width, heads = config.hidden_size, config.num_attention_heads
    shared = getattr(config, "num_key_value_heads", None) or heads
    return Transformer(
        num_blocks=config.num_hidden_layers,
        width=width,
        inner_width=getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * width,
        vocabulary=config.vocab_size,
        positions=config.max_position_embeddings if _any("position", names) or _any("wpe", names) else 0,
        types=config.type_vocab_size if _any("token_type", names) else 0,
        causal=not model.masked_lm,
        key_value_width=width * shared // heads,
        gated=_any("gate", names),
        tied=config.tie_word_embeddings,
        pooled=config.model_type == "bert",
    )


def _names(model: HuggingFaceModel) -> Iterable[str]:
    yield from (spec.name for group in model.groups for spec in group.parameters)
    yield from (spec.name for spec in model.frozen)


def _any(part: str, names: Iterable[str]) -> bool:
    return any(part in name for name in names)
