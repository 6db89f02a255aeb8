"""Compares a cut model with the whole one: the same numbers must come out, to the last bit.

It is done on a narrow model of the same structure, where the config allows one; otherwise on the model itself if that
is small, and not at all if it is not.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
import torch
from torch import nn

from planaria.job.errors import in_one_line
from planaria.job.sections.data import DOCUMENT_POSITIONS, SOURCE_MASK
from planaria.job.sections.model import ModelSection
from planaria.job.sections.train import TrainSection
from planaria.model.config import TOKEN_MASK, example_batch
from planaria.model.huggingface import HuggingFaceModel, logits
from planaria.model.initial import seeded
from planaria.model.model import Batch, ModelError, Tensors

_WIDTHS = (
    "hidden_size", "intermediate_size", "head_dim", "d_model", "d_kv", "d_ff", "ffn_dim", "word_embed_proj_dim",
    "encoder_ffn_dim", "decoder_ffn_dim", "moe_intermediate_size", "shared_expert_intermediate_size", "q_lora_rank",
    "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "query_pre_attn_scalar",
)  # fmt: skip
_LEAST_HEAD = 8
_MOST_PARAMETERS = 50_000_000
_MOST_ROWS, _MOST_TOKENS = 2, 64


def compare(model: HuggingFaceModel, section: ModelSection, train: TrainSection, example: Batch | None = None) -> None:
    """Compares the job's model, as it is cut, with the whole one.

    Where documents are apart, also a document in a window with the same one alone; under virtual shards, also the
    model in shards.

    Args:
        model: the job's.
        section: its [model].
        train: its [train].
        example: a microbatch of its data, on which to compare; None: its data are tokens, and any will do.

    Raises:
        ModelError: outputs or gradients differ.
    """
    shorter = msgspec.structs.replace(
        train, microbatch=min(train.microbatch, _MOST_ROWS), sequence_length=min(train.sequence_length, _MOST_TOKENS)
    )
    for config in _narrower(model.config):
        try:
            batch = example_batch(config, model.model_class, shorter) if example is None else model.example
            build = partial(HuggingFaceModel, model.model_class, config, batch, split_at=section.split_at)
            small = build()
            in_shards = build(virtual_shards=section.virtual_shards) if section.virtual_shards else None
        except ModelError:
            continue
        if len(small.layer_names) != len(model.layer_names) or _size(small) > _MOST_PARAMETERS:
            continue
        samples = _random(small) if example is None else model.example
        difference = _difference(small, samples)
        if difference is not None:
            raise ModelError(
                f"model.type = {section.type!r}: cut into {len(small.layer_names)} layers, {difference}. "
                "Planaria cannot train it."
            )
        if in_shards is not None and (difference := _difference_in_shards(in_shards, samples)) is not None:
            raise ModelError(
                f"model.virtual_shards = {section.virtual_shards}: a {model.config.model_type} model cannot be split "
                f"by transformers' plan of it: {difference}. Set it to 0."
            )
        if DOCUMENT_POSITIONS in model.inputs and not _keeps_apart(small, shorter.sequence_length):
            raise ModelError(
                f'data.packing = "apart": model.type = {section.type!r} gives a document other outputs where another '
                'one is in its window. Set it to "pad", or "across" where data are texts.'
            )
        if SOURCE_MASK in model.inputs and not _heeds_mask(small, shorter.sequence_length):
            raise ModelError(
                f'data.packing = "translate": model.type = {section.type!r} reads what fills a prompt up. '
                "Planaria cannot train it on pairs."
            )
        if TOKEN_MASK in model.inputs and not _masks_as_whole(small):
            raise ModelError(
                f"model.type = {section.type!r} treats {TOKEN_MASK!r} in a way of its own. Leave it out of the "
                "dataset's items, and fill sequences up at their ends, with labels of -100."
            )
        return


def _narrower(config: Any) -> Iterator[Any]:
    """Yields configs of narrow models of this structure, and at last the config itself."""
    heads = getattr(config, "num_attention_heads", None)
    width = getattr(config, "hidden_size", None)
    if isinstance(heads, int) and isinstance(width, int):
        times = getattr(config, "head_dim", None) or width // heads
        while times > 1:
            if times * _LEAST_HEAD <= width // heads:
                narrow = copy.deepcopy(config)
                for name in _WIDTHS:
                    value = getattr(narrow, name, None)
                    if isinstance(value, int) and value:
                        setattr(narrow, name, max(1, value // times))
                yield narrow
            times //= 2
    yield copy.deepcopy(config)


def _size(model: HuggingFaceModel) -> int:
    return sum(torch.Size(spec.shape).numel() for group in model.groups for spec in group.parameters)


def _random(model: HuggingFaceModel) -> Batch:
    """Returns a batch of random values."""
    rows = getattr(model.config, "vocab_size", 2)
    with seeded(1):
        return {
            name: torch.randint(rows, example.shape) if example.dtype == torch.int64 else torch.randn(example.shape)
            for name, example in model.example.items()
        }


def _difference_in_shards(model: HuggingFaceModel, batch: Batch) -> str | None:
    try:
        return _difference(model, batch, rounds=True)
    except (RuntimeError, ValueError, AttributeError) as error:  # of modules that know how wide they are whole
        return in_one_line(error)


def _difference(model: HuggingFaceModel, batch: Batch, *, rounds: bool = False) -> str | None:
    """Returns how a model's layers differ from the whole model.

    Args:
        model: the layers.
        batch: on which.
        rounds: whether outputs may differ by rounding.
    """
    with seeded(0):
        whole = model.model_class(model.config).eval()
        state = {name: parameter.detach() for name, parameter in whole.named_parameters()}
        layers = [layer.eval() for layer in _filled(model, state)]
        expected = logits(whole, batch)
        values: Tensors = tuple(batch.values())
        for layer in layers:
            output = layer(*values)
            values = output if isinstance(output, tuple) else (output,)
        if not (_is_close if rounds else torch.equal)(values[0], expected):
            return "it gives other outputs than whole"
        weights = torch.randn(expected.shape)
        torch.autograd.backward((expected * weights).sum())
        torch.autograd.backward((values[0] * weights).sum())
    for group in (group for group in model.groups if not group.is_statistics):
        for spec in group.parameters:
            parts = [layers[at].get_parameter(local).grad for at, local in spec.uses]
            found = sum((part for part in parts if part is not None), torch.zeros(spec.shape))
            gradient = whole.get_parameter(spec.name).grad
            other = torch.zeros(spec.shape) if gradient is None else gradient
            if not _is_close(found, other):
                return f"the gradient of {spec.name} is another than whole"
    return None


def _keeps_apart(model: HuggingFaceModel, length: int) -> bool:
    """Whether each of two documents in a window has the outputs that it has alone."""
    half = (length + 1) // 2
    with seeded(0), torch.no_grad():
        whole = model.model_class(model.config).eval()
        ids = torch.randint(model.config.vocab_size, (1, length))
        found = logits(whole, {"input_ids": ids, DOCUMENT_POSITIONS: torch.arange(length)[None] % half})
        alone = torch.cat([logits(whole, {"input_ids": part}) for part in (ids[:, :half], ids[:, half:])], dim=1)
    return _is_close(found, alone)


def _heeds_mask(model: HuggingFaceModel, length: int) -> bool:
    """Whether what fills a prompt up changes nothing."""
    half = (length + 1) // 2
    with seeded(0), torch.no_grad():
        whole = model.model_class(model.config).eval()
        ids, labels = torch.randint(model.config.vocab_size, (2, 1, length))
        is_source = (torch.arange(length) < half).long()[None]
        found = logits(whole, {"input_ids": ids, SOURCE_MASK: is_source, "labels": labels})
        alone = logits(whole, {"input_ids": ids[:, :half], "labels": labels})
    return _is_close(found, alone)


def _masks_as_whole(model: HuggingFaceModel) -> bool:
    """Whether tokens have the outputs of the family's own mask, with what fills up before or behind them."""
    length = model.example["input_ids"].shape[-1]
    with seeded(0), torch.no_grad():
        whole = model.model_class(model.config).eval()
        ids = torch.randint(model.config.vocab_size, (2, length))
        places, few = torch.arange(length), length // 4
        given = {"input_ids": ids, TOKEN_MASK: torch.stack([places < length - few, places >= few]).long()}
        if model.config.is_encoder_decoder:
            given["labels"] = ids
        expected = whole(**given).logits
        found = logits(whole, given)
    is_told = torch.ones_like(ids).bool() if model.config.is_encoder_decoder else given[TOKEN_MASK] == 1
    return _is_close(found[is_told], expected[is_told])


def _is_close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether tensors are equal within rounding."""
    return torch.allclose(found, expected, rtol=1e-3, atol=1e-4 * float(expected.detach().abs().max()))


def _filled(model: HuggingFaceModel, state: dict[str, torch.Tensor]) -> list[nn.Module]:
    layers = [model.build_layer(index) for index in range(len(model.layer_names))]
    with torch.no_grad():
        for spec in (*(spec for group in model.groups for spec in group.parameters), *model.frozen):
            for at, local in spec.uses if not spec.is_statistic else ():
                layers[at].get_parameter(local).copy_(state[spec.name])
    return layers
