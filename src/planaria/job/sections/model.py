"""[model]: which model is trained, from which weights, and its adapters."""

from __future__ import annotations

from typing import Any

import msgspec

from planaria.job.sections.section import Section
from planaria.job.values import at_least, function, is_function, is_hub_weights, path, refuse, shown, text

AUTO_MODEL = "auto"
"""`model.type` of a job that leaves it to the folder of weights."""

ALL_LINEAR = "all-linear"
"""In `model.lora.target_modules`: every linear module but the head, as peft means it."""


class LoraSection(Section, frozen=True):
    """[model.lora]

    Attributes:
        r: rank of the adapters.
        lora_alpha: what an adapter gives is scaled by lora_alpha / r.
        lora_dropout: dropout of what an adapter is given.
        target_modules: last names of the modules that get adapters, or ["all-linear"]; left out: peft's own choice for
            the type of model.
    """

    r: int = 8
    lora_alpha: int = 8
    lora_dropout: float = 0.0
    target_modules: tuple[str, ...] = ()


class ModelSection(Section, frozen=True):
    """[model]

    An emulated device (cluster.device) runs the layers of its profile instead; the section may then be left out.

    Attributes:
        type: a Hugging Face model type (gpt2, qwen3, bert, t5, ...), "auto" for the type of `weights`, or
            "module:function" returning a list of layers or a torch.nn.Module.
        config: overrides of the Hugging Face config, or keyword arguments of the function.
        weights: local Hugging Face folder to start from, the URL of one (s3://, gs://, or another that fsspec knows),
            or "hf://OWNER/NAME?revision=main", a model of the hub by its name; random weights when absent.
        weights_from: where `weights` were fetched from, if they were; filled in when the run begins.
        split_at: paths of the modules between which a model can be cut, a star for any one name, as in
            "encoder.layers.*"; by default the members of the model's own lists of blocks.
        loss: "module:function" (outputs, batch) -> scalar; only for a model that is a function.
            Default: cross entropy of the labels, of tokens the next ones.
        lora: adapters (LoRA, by peft) that are trained in place of the model's own parameters; see
            docs/howto/fine-tuning.md.
        virtual_shards: in so many shards each block's matrices are computed, and summed in one fixed order: a power
            of two that divides the heads, part of the job's numbers; see docs/howto/own-model.md. 0: none; in fast
            numerics, with tensor stages, as many as a stage has devices.
    """

    type: str
    config: dict[str, Any] = msgspec.field(default_factory=dict)
    weights: str | None = None
    weights_from: str = ""
    split_at: tuple[str, ...] = ()
    loss: str | None = None
    lora: LoraSection | None = None
    virtual_shards: int = 0


def check_model(model: ModelSection) -> None:
    """Refuses a [model] that cannot be. Raises UserError."""
    path("model.type", model.type)
    if is_function(model.type):
        function("model.type", model.type)
        if model.weights is not None:
            refuse(
                "model.weights", model.weights, "goes with a Hugging Face model type only",
                "Leave it out, and load the weights in the function.",
            )  # fmt: skip
        if model.lora is not None:
            refuse(
                "model.type", model.type, "is a function, and model.lora goes with a Hugging Face model type only",
                "Leave [model.lora] out, and put adapters into the layers there.",
            )  # fmt: skip
    elif model.loss is not None:
        refuse(
            "model.loss", model.loss,
            f"goes with a model that is a function, not with model.type = {shown(model.type)}",
            "Leave it out.",
        )  # fmt: skip
    if model.weights is not None:
        text("model.weights", model.weights)
        if model.weights.startswith("hf://") and not is_hub_weights(model.weights):
            refuse(
                "model.weights", model.weights, "names no model of the hub", 'Write "hf://OWNER/NAME?revision=main".'
            )
    if model.loss is not None:
        function("model.loss", model.loss)
    if model.lora is not None:
        _check_lora(model.lora)
    if model.virtual_shards:
        _check_virtual_shards(model)


def _check_lora(lora: LoraSection) -> None:
    at_least("model.lora.r", lora.r, 1)
    at_least("model.lora.lora_alpha", lora.lora_alpha, 1)
    if not 0 <= lora.lora_dropout < 1:
        refuse("model.lora.lora_dropout", lora.lora_dropout, "is not within [0, 1)", "Set for instance 0.05.")
    for name in lora.target_modules:
        text("model.lora.target_modules", name)


def _check_virtual_shards(model: ModelSection) -> None:
    field, shards = "model.virtual_shards", model.virtual_shards
    at_least(field, shards, 0)
    if shards & (shards - 1):
        refuse(field, shards, "is no power of two", f"Set it to {1 << (shards.bit_length() - 1)}, or to 0.")
    if is_function(model.type):
        refuse(field, shards, f"goes with a Hugging Face model type, not with {shown(model.type)}", "Set it to 0.")
    if model.lora is not None:
        refuse(field, shards, "does not go with adapters", "Set it to 0, or leave [model.lora] out.")
