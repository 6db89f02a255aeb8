"""Loads the model of a job's [model] section as a list of layers.

transformers is imported only when a Hugging Face family is asked for.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING

from planaria.job.settings import ModelSection, TrainSection
from planaria.model.function import load_function_model
from planaria.model.model import Model, ModelError

if TYPE_CHECKING:
    from planaria.model.huggingface import Family, HuggingFaceModel

MODEL_TYPES = ("bert", "gpt2", "llama")
"""Hugging Face model types that can be cut; each is a module beside this one."""


def load_model(section: ModelSection, train: TrainSection, *, vocab_size: int | None) -> Model:
    """Loads the job's model.

    Args:
        section: the job's [model].
        train: the job's [train].
        vocab_size: tokens that the tokenizer knows; the default of the config, where the job does not say.

    Raises:
        ModelError: the model cannot be built or cut; names the field, the value and the remedy.
    """
    if ":" in section.type:
        return load_function_model(section, train, vocab_size=vocab_size)
    return load_huggingface_model(section, train, vocab_size=vocab_size)


def load_family(model_type: str) -> Family:
    """Returns how models of a Hugging Face type are cut.

    Raises:
        ModelError: planaria does not know the type.
    """
    if model_type not in MODEL_TYPES:
        close = get_close_matches(model_type, MODEL_TYPES, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ModelError(
            f"model.type = {model_type!r} is not known.{hint} There are {', '.join(MODEL_TYPES)}, and "
            '"module:function" for any Python function that returns a list of layers.'
        )
    family: Family = import_module(f"planaria.model.{model_type}").FAMILY
    return family


def load_huggingface_model(section: ModelSection, train: TrainSection, *, vocab_size: int | None) -> HuggingFaceModel:
    """Loads the model of a section whose type is a Hugging Face type; otherwise as `load_model`."""
    family = load_family(section.type)

    from planaria.model.huggingface import HuggingFaceModel, make_config
    from planaria.model.weights import WeightsFolder

    if section.loss is not None:
        raise ModelError(
            f"model.loss = {section.loss!r}: a {section.type} model has its own loss. Remove the field, "
            "or give the model as a function."
        )
    weights = None if section.weights is None else WeightsFolder(section.weights, section.type)
    config = make_config(family, section.config, weights, vocab_size)
    field = config.attribute_map.get("max_position_embeddings", "max_position_embeddings")
    positions = config.max_position_embeddings
    if train.sequence_length > positions:
        raise ModelError(
            f"train.sequence_length = {train.sequence_length} is more than the model's {positions} "
            f"positions. Set model.config.{field} = {train.sequence_length}, or shorten it."
        )
    return HuggingFaceModel(family, config, weights)
