"""Loads the model of a job's [model] section as a list of layers.

transformers is imported only when a Hugging Face model is asked for.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from planaria.job.sections.data import DOCUMENT_POSITIONS, SOURCE_MASK
from planaria.job.sections.model import AUTO_MODEL, ModelSection
from planaria.job.sections.train import TrainSection
from planaria.model.function import load_function_model
from planaria.model.model import Batch, Model, ModelError
from planaria.model.training.treatment import check_rules, is_frozen

if TYPE_CHECKING:
    from planaria.model.huggingface import HuggingFaceModel

_preloaded: dict[bytes, HuggingFaceModel] = {}
"""The model that this process was forked with, by what determines it."""


def load_model(
    section: ModelSection, train: TrainSection, *, vocab_size: int | None, example: Batch | None = None
) -> Model:
    """Loads the job's model.

    Args:
        section: the job's [model].
        train: the job's [train].
        vocab_size: tokens that the tokenizer knows; the default of the config, where the job does not say.
        example: a microbatch of the job's dataset; None: its data are tokens.

    Raises:
        ModelError: the model cannot be built or cut; names the field, the value and the remedy.
    """
    if ":" in section.type:
        frozen = partial(is_frozen, train=train)
        own = load_function_model(section, train, vocab_size=vocab_size, example=example, is_frozen=frozen)
        if example is not None and DOCUMENT_POSITIONS in example and DOCUMENT_POSITIONS not in own.inputs:
            raise ModelError(
                f'data.packing = "apart": the first layer of model.type = {section.type!r} takes no '
                f"{DOCUMENT_POSITIONS}, each token's position in its document. Add that parameter, or set "
                'data.packing = "across" or "pad".'
            )
        return _checked(own, section, train)
    model = load_huggingface_model(section, train, vocab_size=vocab_size, example=example)
    if model.refused_statistics is not None:
        raise ModelError(f"model.type = {section.type!r}: {model.refused_statistics}, or choose another model.")
    return _checked(model, section, train)


def _checked(model: Model, section: ModelSection, train: TrainSection) -> Model:
    """Refuses rules that hold for nothing, and a model of which nothing is trained."""
    check_rules(model, train)
    if model.frozen and all(group.is_statistics for group in model.groups):
        raise ModelError(
            f"model.type = {section.type!r}: none of its {len(model.frozen)} parameters is trainable, by "
            f"train.parameters and requires_grad. Let some be trained, for instance {model.frozen[-1].name!r}."
        )
    return model


def compare_with_whole(
    section: ModelSection, train: TrainSection, *, vocab_size: int | None, example: Batch | None = None
) -> None:
    """Refuses a model that gives other numbers cut than whole, once, when a job starts. Raises ModelError."""
    if ":" in section.type:
        return
    from planaria.model.comparison import compare

    model = load_huggingface_model(section, train, vocab_size=vocab_size, example=example)
    compare(model, section, train, example)


def import_what_a_model_needs(model_type: str) -> None:
    """Imports the code of a Hugging Face model type, if it is one, so that processes to come are forked with it."""
    if ":" not in model_type:
        import planaria.model.comparison  # noqa: F401
        from planaria.model.config import import_code

        import_code(model_type)


def preload_model(section: ModelSection, train: TrainSection, *, vocab_size: int | None) -> None:
    """Loads a Hugging Face model in place of the last one, so that processes to come are forked with it.

    Not where it has a folder of weights, in which other files may be by then, and not again where the last one is it.

    Raises:
        ModelError: as `load_model`.
    """
    wanted = _all_of(section, train, vocab_size)
    if wanted in _preloaded:
        return
    _preloaded.clear()
    if section.lora is not None:
        from planaria.model.tensors.lora import import_peft

        import_peft()
    if ":" not in section.type and section.weights is None:
        model = load_huggingface_model(section, train, vocab_size=vocab_size)
        _preloaded[wanted] = model


def _all_of(section: ModelSection, train: TrainSection, vocab_size: int | None) -> bytes:
    return msgspec.json.encode((section, train, vocab_size), order="deterministic")


def load_huggingface_model(
    section: ModelSection, train: TrainSection, *, vocab_size: int | None, example: Batch | None = None
) -> HuggingFaceModel:
    """Loads the model of a section whose type is a Hugging Face type; otherwise as `load_model`."""
    if example is None and (model := _preloaded.get(_all_of(section, train, vocab_size))) is not None:
        return model
    from planaria.model.config import (
        check_apart,
        check_length,
        config_class,
        example_batch,
        make_config,
        model_class,
        taken_of,
    )
    from planaria.model.huggingface import HuggingFaceModel
    from planaria.model.weights.folder import WeightsFolder

    if section.type == AUTO_MODEL and section.weights is None:
        raise ModelError('model.type = "auto" is the type of model.weights, and that is missing. Name a folder.')
    if section.type != AUTO_MODEL:
        config_class(section.type)
    if section.loss is not None:
        raise ModelError(
            f"model.loss = {section.loss!r}: a {section.type} model has its own loss. Remove the field, "
            "or give the model as a function."
        )
    weights = None
    if section.weights is not None:
        weights = WeightsFolder(section.weights, None if section.type == AUTO_MODEL else section.type)
    model_type = section.type if weights is None else weights.config["model_type"]
    config = make_config(model_type, section.config, weights, vocab_size)
    check_length(config, train)
    architectures = weights.config.get("architectures") if weights is not None else None
    made_by, masked_lm = model_class(config, architectures[0] if architectures else None)
    if example is not None and DOCUMENT_POSITIONS in example:
        check_apart(config, made_by, train, masked_lm=masked_lm)
    if example is not None and SOURCE_MASK in example and not config.is_encoder_decoder:
        raise ModelError(
            f'data.packing = "translate": a {config.model_type} model has no encoder with a decoder. '
            'Set data.packing = "pad".'
        )
    return HuggingFaceModel(
        made_by,
        config,
        example_batch(config, made_by, train) if example is None else taken_of(example, made_by, config),
        masked_lm=masked_lm,
        split_at=section.split_at,
        weights=weights,
        lora=section.lora,
        is_frozen=partial(is_frozen, train=train),
        seed=train.seed,
        virtual_shards=section.virtual_shards,
    )
