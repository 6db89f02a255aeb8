"""The costs of a job without a measurement: the analytic model of presets, on the shape that its config gives.

For plans of GPU clusters on machines without a GPU. A tokenizer that is not there
is taken to fit the model's config.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from planaria.job.checks import is_function
from planaria.job.errors import UserError
from planaria.job.settings import Device, Job
from planaria.plan.costs.model_profile import ModelProfile
from planaria.profile.presets.presets import computed
from planaria.profile.presets.shapes import ModelShape
from planaria.profile.presets.transformers import Transformer

ASSUMED_DEVICE = "a100"
"""Device that is assumed where none is given."""

_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Paths on a machine with a GPU that torch can use: NVIDIA's driver, AMD's, or the one of Windows' subsystem."""


def lacks_device(job: Job) -> bool:
    """Returns whether the job computes on GPUs, and this machine has none to measure on."""
    return job.cluster.device is Device.CUDA and not any(Path(driver).exists() for driver in _DRIVERS)


def profile_of_job(job: Job, device: str) -> ModelProfile:
    """Returns the profile of the job's layers on a published device, one device a stage.

    Raises:
        UserError: the device is not known, or the model is a function.
        ModelError, DataError: the config is not one of the model's type, or the tokenizer that is there is none.
    """
    if is_function(job.model.type):
        raise UserError(
            f"model.type = {job.model.type!r} is a function, and costs are computed for Hugging Face models only. "
            "Plan on a machine with the job's device, or give the costs by --profile FILE."
        )
    from planaria.data.tokenizer import BYTES, load_tokenizer
    from planaria.model.load import load_huggingface_model

    tokenizer = job.data.tokenizer
    vocab_size = load_tokenizer(tokenizer).vocab_size if tokenizer == BYTES or Path(tokenizer).is_file() else None
    config = load_huggingface_model(job.model, job.train, vocab_size=vocab_size).config
    shape = ModelShape(
        title=job.model.type,
        layers=_transformer(config).layers,
        microbatch_size=job.train.microbatch,
        sequence_length=job.train.sequence_length,
        published_parameters=0,
        source="model.config",
    )
    return computed(job.model.type, shape, device)


def _transformer(config: Any) -> Transformer:
    """Returns the shape of a config of one of our families; see `planaria.model`."""
    width, kind = config.hidden_size, config.model_type
    shared = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return Transformer(
        num_blocks=config.num_hidden_layers,
        width=width,
        inner_width=getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * width,
        vocabulary=config.vocab_size,
        positions=0 if kind == "llama" else config.max_position_embeddings,
        types=config.type_vocab_size if kind == "bert" else 0,
        causal=kind != "bert",
        key_value_width=width * shared // config.num_attention_heads,
        gated=kind == "llama",
        tied=config.tie_word_embeddings,
        pooled=kind == "bert",
    )
