"""Which modules of a Hugging Face model are split into shards, and how: as transformers' own plans say.

A plan (`base_model_tp_plan` of a config) names modules by patterns of paths. What it has no plain rule for (experts, a
vocabulary, norms over all heads) stays whole.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from torch import nn
from transformers.pytorch_utils import Conv1D

from planaria.model.model import ModelError
from planaria.model.tensors.virtual_shards import Split, undivided

_QKV = "colwise, queries, keys and values side by side"
_MATRICES = {"colwise": 1, _QKV: 3}
"""Kinds of modules that are split by columns, and how many matrices lie side by side in one."""
_ROWS = "rowwise"
_WHOLE = "replicated_with_grad_allreduce"

_GPT2 = {
    "transformer.h.*.attn.c_attn": _QKV,
    "transformer.h.*.attn.c_proj": _ROWS,
    "transformer.h.*.mlp.c_fc": "colwise",
    "transformer.h.*.mlp.c_proj": _ROWS,
}
"""GPT-2's plan, for which transformers has none."""


_FEWER_DEVICES = "; no more devices may share a stage (cluster.devices_per_stage)"


def find_splits(whole: Any, shards: int) -> dict[str, Split]:
    """Returns how the sections of a model are split, by path.

    Args:
        whole: the model.
        shards: how many there are, a power of two.

    Raises:
        ModelError: it has no plan, or so many shards do not fit it.
    """
    config, said = whole.config, f"model.virtual_shards = {shards}"
    heads = getattr(config.get_text_config(), "num_attention_heads", shards)
    kinds = _kinds(whole, _GPT2 if config.model_type == "gpt2" else whole.tp_plan)
    splits = {}
    for section in dict.fromkeys(path.rpartition(".")[0] for path, kind in kinds.items() if kind == _ROWS):
        split = _split(whole.get_submodule(section), section, kinds)
        if split is not None:
            splits[section] = split
    if not splits:
        raise ModelError(
            f"{said}: transformers has no plan by which the {config.model_type} model can be split "
            "(base_model_tp_plan). Set it to 0."
        )
    if heads % shards:
        raise ModelError(
            f"{said} does not divide the {heads} heads of the {config.model_type} model. "
            f"Set it to {math.gcd(heads, shards)}, or to 0{_FEWER_DEVICES}."
        )
    for section, split in splits.items():
        found = undivided(whole.get_submodule(section), split, shards)
        if found is not None:
            raise ModelError(
                f"{said} does not divide the {found[1]} parts of {section}.{found[0]}. "
                f"Set it to {math.gcd(found[1], shards)}, or to 0{_FEWER_DEVICES}."
            )
    return splits


def _kinds(whole: nn.Module, plan: Mapping[str, str]) -> dict[str, str]:
    """Returns the plan's kind of each module that it names, by path."""
    patterns = {re.compile(r"[^.]+".join(map(re.escape, name.split("*")))): kind for name, kind in plan.items()}
    found = {}
    for path, _ in whole.named_modules():
        kind = next((kind for pattern, kind in patterns.items() if pattern.fullmatch(path)), None)
        if kind is not None:
            found[path] = kind
    return found


def _split(section: nn.Module, path: str, kinds: Mapping[str, str]) -> Split | None:
    """Returns how a section is split; None: some of its parameters are of a kind for which there is no rule here."""
    columns: dict[str, int] = {}
    rows, wholes = [], []
    for name, module in section.named_modules():
        if not any(True for _ in module.parameters(recurse=False)):
            continue
        kind = kinds.get(f"{path}.{name}")
        is_matrix = type(module) in (nn.Linear, Conv1D)
        if kind in _MATRICES and is_matrix:
            columns[name] = _MATRICES[kind]
        elif kind == _ROWS and is_matrix:
            rows.append(name)
        elif kind == _WHOLE:
            wholes.append(name)
        else:
            return None
    return Split(columns=columns, rows=rows[0], whole=tuple(wholes)) if columns and len(rows) == 1 else None
