"""Makes the Hugging Face config of a job, and says which model class trains it and on what batches."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import torch
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

from planaria.job.errors import in_one_line
from planaria.job.sections.data import DOCUMENT_POSITIONS, SOURCE_MASK
from planaria.job.sections.train import TrainSection
from planaria.model.model import Batch, ModelError
from planaria.model.weights.folder import WeightsFolder

_ABOUT_THE_FILE = frozenset({"architectures", "model_type", "transformers_version", "_name_or_path", "dtype"})
TOKEN_MASK = "attention_mask"
"""Name of what tells a model which positions are tokens, and not what fills up."""
_MASKED, _CAUSAL, _TRANSLATION = "masked", "causal", "translation"
_CLASSES = {
    _MASKED: modeling_auto.MODEL_FOR_MASKED_LM_MAPPING,
    _CAUSAL: modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING,
    "images": modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
    _TRANSLATION: modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
}
"""Classes with a head that there is a loss for; of two, the first counts."""

_OTHERWISE = 'Set data.packing = "pad", or "across" where data are texts.'
_NARROW = ("sliding_window", "attention_chunk_size")
"""Settings of models whose attention does not reach over all of a window."""
_SKIPS = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop")
_SUGGESTED = ("gpt2", "bert", "llama", "mistral", "qwen3", "gemma2", "mixtral", "modernbert", "t5", "vit", "resnet")


def config_class(model_type: str) -> Any:
    """Returns the config class of a Hugging Face model type.

    Raises:
        ModelError: transformers does not know the type.
    """
    if model_type not in CONFIG_MAPPING_NAMES:
        close = get_close_matches(model_type, CONFIG_MAPPING_NAMES, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ModelError(
            f"model.type = {model_type!r} is not known.{hint} There are {', '.join(_SUGGESTED)} and the other "
            'model types of transformers, "auto" for what model.weights holds, and "module:function" for any '
            "Python function that returns a model."
        )
    return CONFIG_MAPPING[model_type]


def make_config(
    model_type: str, overrides: Mapping[str, Any], weights: WeightsFolder | None, vocab_size: int | None
) -> Any:
    """Makes the Hugging Face config of a job.

    The job's overrides come before the weights folder's config, and that before the family's defaults. The
    tokenizer's `vocab_size` is the default where neither says one.

    Raises:
        ModelError: an unknown type or key, a bad value, fewer rows than the tokenizer has tokens, or a model that
            cannot be cut.
    """
    made_by = config_class(model_type)
    defaults = made_by()
    aliases: Mapping[str, str] = made_by.attribute_map
    known = (set(defaults.to_dict()) | set(aliases) | {"num_labels"}) - _ABOUT_THE_FILE
    for key in overrides:
        if key not in known:
            close = get_close_matches(key, known, n=1)
            hint = f"Did you mean {close[0]!r}?" if close else f"See transformers' {type(defaults).__name__}."
            raise ModelError(f"model.config.{key}: {model_type} has no such setting. {hint}")
    given = {aliases.get(key, key): value for key, value in overrides.items()}
    values = {**({} if weights is None else weights.config), **given}
    for key in _ABOUT_THE_FILE:
        values.pop(key, None)
    if "vocab_size" in known and vocab_size is not None:
        values.setdefault("vocab_size", vocab_size)
        _check_vocabulary(values, defaults, given, vocab_size)
    try:
        config = made_by(**values)
    except Exception as error:  # transformers has no one class for a bad config
        raise ModelError(f"[model.config] is not a {model_type} config: {in_one_line(error)}") from error
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = config.pad_token_id
    _check_config(config)
    return config


def _check_vocabulary(values: dict[str, Any], defaults: Any, given: Mapping[str, Any], vocab_size: int) -> None:
    rows = values["vocab_size"]
    if isinstance(rows, int) and rows < vocab_size:
        raise ModelError(
            f"model.config.vocab_size = {rows} is less than the tokenizer's {vocab_size} tokens. "
            f"Set it to {vocab_size} or more, or leave it out."
        )
    for key in (key for key in defaults.to_dict() if key.endswith("_token_id")):
        # Defaults belong to the family's own tokenizer; ids that this vocabulary lacks break generation.
        if key not in given and _outside(values.get(key, getattr(defaults, key, None)), rows):
            values[key] = None


def _outside(token: object, vocab_size: object) -> bool:
    tokens = token if isinstance(token, list) else [token]
    return isinstance(vocab_size, int) and any(isinstance(one, int) and one >= vocab_size for one in tokens)


def _check_config(config: Any) -> None:
    heads, shared = (getattr(config, name, None) for name in ("num_attention_heads", "num_key_value_heads"))
    if isinstance(heads, int) and isinstance(shared, int) and shared and heads % shared:
        raise ModelError(
            f"model.config.num_key_value_heads = {shared} does not divide num_attention_heads = {heads}. "
            "Choose a divisor."
        )
    if not config.is_encoder_decoder:
        for key in ("is_decoder", "add_cross_attention"):
            if getattr(config, key, False):
                raise ModelError(
                    f"model.config.{key} = true: there is no encoder whose output the blocks could be given. "
                    "Set it to false."
                )
    for key in _SKIPS:
        if getattr(config, key, 0):
            raise ModelError(f"model.config.{key} = {getattr(config, key)}: blocks cannot be skipped at random. Set 0.")
    if getattr(config, "output_router_logits", False):
        raise ModelError(
            "model.config.output_router_logits = true: the routers' own loss would need what all blocks decide. "
            "Set it to false."
        )


def check_length(config: Any, train: TrainSection) -> None:
    """Refuses sequences that are longer than the model has positions. Raises ModelError."""
    field = config.attribute_map.get("max_position_embeddings", "max_position_embeddings")
    positions = getattr(config, "max_position_embeddings", None)
    if isinstance(positions, int) and positions > 0 and train.sequence_length > positions:
        raise ModelError(
            f"train.sequence_length = {train.sequence_length} is more than the model's {positions} "
            f"positions. Set model.config.{field} = {train.sequence_length}, or shorten it."
        )


def import_code(model_type: str) -> None:
    """Imports what models of a type are made of; nothing where the type is not known."""
    if model_type in CONFIG_MAPPING_NAMES:
        for classes in _CLASSES.values():
            if CONFIG_MAPPING[model_type] in classes:
                classes[CONFIG_MAPPING[model_type]]


def model_class(config: Any, architecture: str | None) -> tuple[Any, bool]:
    """Returns the class that trains a config's model, and whether it predicts hidden tokens.

    Args:
        config: the model's.
        architecture: name of the class that wrote the weights, if it is known.

    Raises:
        ModelError: there is none with a head that Planaria has a loss for.
    """
    found = {
        kind: classes[type(config)]
        for kind, classes in _CLASSES.items()
        if type(config) in classes and config.is_encoder_decoder == (kind == _TRANSLATION)
    }
    if not found:
        raise ModelError(
            f"model.type = {config.model_type!r} has no class in transformers for language modelling, translation "
            "or image classification. Give the model as a function."
        )
    kind = next((kind for kind, one in found.items() if one.__name__ == architecture), next(iter(found)))
    return found[kind], kind == _MASKED


def predicts_next(config: Any, made_by: Any) -> bool:
    """Whether a config's model of this class predicts each next token from those before it."""
    classes = _CLASSES[_CAUSAL]
    return type(config) in classes and classes[type(config)] is made_by


def example_batch(config: Any, made_by: Any, train: TrainSection) -> Batch:
    """Returns a batch of a microbatch's shapes, of zeros, by the names under which the model takes its tensors."""
    if made_by.main_input_name == "pixel_values":
        size = getattr(config, "image_size", None) or _IMAGE_SIZE
        height, width = (size, size) if isinstance(size, int) else size
        return {"pixel_values": torch.zeros(train.microbatch, config.num_channels, height, width)}
    ids = torch.zeros(train.microbatch, train.sequence_length or _ANY_LENGTH, dtype=torch.int64)
    return {"input_ids": ids, "labels": ids.clone()} if config.is_encoder_decoder else {"input_ids": ids}


def check_apart(config: Any, made_by: Any, train: TrainSection, *, masked_lm: bool) -> None:
    """Refuses models that cannot keep documents apart within a window. Raises ModelError."""
    said = f'data.packing = "apart": a {config.model_type} model'
    known = inspect.signature(made_by.forward).parameters
    if masked_lm or config.is_encoder_decoder or not {"position_ids", TOKEN_MASK} <= set(known):
        raise ModelError(f"{said} takes no positions, or does not predict the next token. {_OTHERWISE}")
    for field in _NARROW:
        width = getattr(config, field, None)
        if isinstance(width, int) and width < train.sequence_length:
            raise ModelError(
                f"{said} has a mask of its own (model.config.{field} = {width}), which would be lost. "
                f"Set train.sequence_length to {width} or less. {_OTHERWISE}"
            )


def taken_of(batch: Batch, made_by: Any, config: Any) -> Batch:
    """Returns what of a dataset's batch a model takes: the tensors that its forward has parameters for.

    Labels are for the loss, but where a decoder's inputs are made of them.

    Raises:
        ModelError: the model's main input is not there.
    """
    known = inspect.signature(made_by.forward).parameters
    shifts = config.is_encoder_decoder and "decoder_input_ids" not in batch
    found = {name: tensor for name, tensor in batch.items() if name in known and (name != "labels" or shifts)}
    found |= {name: batch[name] for name in (DOCUMENT_POSITIONS, SOURCE_MASK) if name in batch}
    for name in (made_by.main_input_name, *(["labels"] if shifts else [])):
        if name not in found:
            raise ModelError(
                f"model.type = {config.model_type!r} needs {name!r}, and the dataset's items have "
                f"{', '.join(map(repr, batch))}. Name them as the model does."
            )
    return found


_IMAGE_SIZE = 224
"""Pixels of an image's side, of models that take any."""
_ANY_LENGTH = 16
"""Tokens of a sequence, where the job does not say how many there are."""
