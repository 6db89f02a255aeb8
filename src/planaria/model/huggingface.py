"""Cuts Hugging Face models into lists of layers: what the families have in common.

A family (`planaria.model.gpt2` and its like) says how its model is cut; this module builds layers, initial
weights and configs from that. Parameters bear the names of the Hugging Face state dict; two layers that give
the same name share a tied parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch
from torch import nn

from planaria.model.grouping import LayerParameter, group_parameters
from planaria.model.initial import SkipRandomFill, derive_seed, seeded
from planaria.model.loss import token_cross_entropy
from planaria.model.model import Batch, GroupSpec, ModelError, Tensors
from planaria.model.weights import WeightsFolder

_SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
_ATTENTION = "sdpa"
_ABOUT_THE_FILE = frozenset({"architectures", "model_type", "transformers_version", "_name_or_path", "dtype"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPart:
    """One layer of a family's model.

    Attributes:
        name: for people; the module's path in the whole model.
        build: makes the module.
        names: (prefix in the module, prefix in the state dict); the first that fits a parameter counts.
    """

    name: str
    build: Callable[[], nn.Module]
    names: tuple[tuple[str, str], ...]

    def state_name(self, local: str) -> str:
        """Returns the name in the state dict of the parameter that is called `local` within the module."""
        for prefix, replacement in self.names:
            if local.startswith(prefix):
                return replacement + local[len(prefix) :]
        raise AssertionError(f"no rule names parameter {local!r} of layer {self.name!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How the models of one Hugging Face type are cut.

    Attributes:
        model_type: of the config.
        config_class: Hugging Face config.
        model_class: the whole model with its head, for export.
        initializer_class: the PreTrainedModel whose `_init_weights` fills fresh modules.
        base_prefix: of names in the state dict that a folder saved without the head leaves out.
        embedding: name in the state dict of the tensor with one row for each token.
        masked_lm: whether hidden tokens are predicted, rather than next ones.
        cut: from config to layers.
        refuse: why a config cannot be cut, with the remedy; None when it can.
        aliases: further names under which a folder may keep the tensor of this name.
    """

    model_type: str
    config_class: Any
    model_class: Any
    initializer_class: Any
    base_prefix: str
    embedding: str
    masked_lm: bool
    cut: Callable[[Any], tuple[LayerPart, ...]]
    refuse: Callable[[Any], str | None]
    aliases: Callable[[str], tuple[str, ...]]


class HuggingFaceModel:
    """A Hugging Face model cut into layers; see `planaria.model.model.Model`.

    Args:
        family: how it is cut.
        config: Hugging Face config of the model; attention goes through torch's scaled_dot_product_attention.
        weights: where initial weights come from; random ones when None.

    Raises:
        ModelError: the config contradicts itself.
    """

    def __init__(self, family: Family, config: Any, weights: WeightsFolder | None) -> None:
        config._attn_implementation = _ATTENTION
        self.config = config
        self._family = family
        self._weights = weights
        self._parts = family.cut(config)
        self._parameters = tuple(_parameters_of(part) for part in self._parts)
        self._groups = group_parameters(self._parameters)

    @property
    def layer_names(self) -> tuple[str, ...]:
        return tuple(part.name for part in self._parts)

    @property
    def groups(self) -> tuple[GroupSpec, ...]:
        return self._groups

    @property
    def masked_lm(self) -> bool:
        return self._family.masked_lm

    @property
    def inputs(self) -> tuple[str, ...]:
        return ("input_ids",)

    def build_layer(self, index: int) -> nn.Module:
        with SkipRandomFill():
            return self._parts[index].build().train()

    def initial_state(self, group: int, seed: int) -> Mapping[str, torch.Tensor]:
        """Returns the initial values of a group, in float32 on the CPU.

        A tied group takes those of its first use. Torch's CPU random numbers are used and put back, so no
        other thread should draw from them meanwhile.

        Raises:
            ModelError: the weights folder lacks a tensor, or has one of another shape.
        """
        specs = self._groups[group].parameters
        if (weights := self._weights) is not None:
            return {spec.name: weights.tensor(self._file_names(spec.name), spec.shape) for spec in specs}
        layer = self._groups[group].layers[0]
        module = self.build_layer(layer)
        with torch.no_grad(), seeded(derive_seed("initial weights", seed, layer)):
            module.apply(self._family.initializer_class(self.config)._init_weights)
        own = dict(module.named_parameters())
        return {spec.name: own[spec.uses[0][1]].detach() for spec in specs}

    def loss(self, outputs: Tensors, batch: Batch) -> torch.Tensor:
        return token_cross_entropy(outputs, batch)

    def _file_names(self, name: str) -> tuple[str, ...]:
        names = (name, *self._family.aliases(name))
        prefix = self._family.base_prefix
        return names + tuple(other.removeprefix(prefix) for other in names if other.startswith(prefix))


def _parameters_of(part: LayerPart) -> tuple[LayerParameter, ...]:
    try:
        with torch.device("meta"), SkipRandomFill():
            module = part.build()
    except Exception as error:  # whatever the family's own checks raise
        raise ModelError(f"[model.config]: layer {part.name} cannot be built: {_line(error)}") from error
    return tuple(
        LayerParameter(name=part.state_name(local), local=local, shape=tuple(parameter.shape))
        for local, parameter in module.named_parameters()
    )


def make_config(
    family: Family, overrides: Mapping[str, Any], weights: WeightsFolder | None, vocab_size: int | None
) -> Any:
    """Makes the Hugging Face config of a job.

    The job's overrides come before the weights folder's config, and that before the family's defaults. The
    tokenizer's `vocab_size` is the default where neither says one.

    Raises:
        ModelError: an unknown key, a bad value, fewer rows than the tokenizer has tokens, or a model that
            cannot be cut.
    """
    defaults = family.config_class()
    aliases: Mapping[str, str] = family.config_class.attribute_map
    known = (set(defaults.to_dict()) | set(aliases)) - _ABOUT_THE_FILE
    for key in overrides:
        if key not in known:
            close = get_close_matches(key, known, n=1)
            hint = f"Did you mean {close[0]!r}?" if close else f"See transformers' {type(defaults).__name__}."
            raise ModelError(f"model.config.{key}: {family.model_type} has no such setting. {hint}")
    given = {aliases.get(key, key): value for key, value in overrides.items()}
    values = {**({} if weights is None else weights.config), **given}
    for key in _ABOUT_THE_FILE:
        values.pop(key, None)
    if vocab_size is not None:
        values.setdefault("vocab_size", vocab_size)
    rows = values.get("vocab_size", defaults.vocab_size)
    if vocab_size is not None and isinstance(rows, int) and rows < vocab_size:
        raise ModelError(
            f"model.config.vocab_size = {rows} is less than the tokenizer's {vocab_size} tokens. "
            f"Set it to {vocab_size} or more, or leave it out."
        )
    for key in _SPECIAL_TOKENS:
        # Defaults belong to the family's own tokenizer; ids that this vocabulary lacks break generation.
        if key not in given and _outside(values.get(key, getattr(defaults, key)), rows):
            values[key] = None
    try:
        config = family.config_class(**values)
    except Exception as error:  # transformers has no one class for a bad config
        raise ModelError(f"[model.config] is not a {family.model_type} config: {_line(error)}") from error
    if reason := family.refuse(config):
        raise ModelError(reason)
    return config


def _outside(token: object, vocab_size: object) -> bool:
    tokens = token if isinstance(token, list) else [token]
    return isinstance(vocab_size, int) and any(isinstance(one, int) and one >= vocab_size for one in tokens)


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
