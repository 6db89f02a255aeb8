"""LoRA (Hu et al., 2021) by peft: adapters beside a model's linear modules, which alone are trained.

Names are peft's: what a module had is under `base_layer`, and beside that come `lora_A.default` and `lora_B.default`.
peft is imported only where a job asks for adapters.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from planaria.job.sections.model import ALL_LINEAR, LoraSection
from planaria.model.initial import derive_seed, seeded
from planaria.model.model import ModelError, ParameterSpec

_BASE = ".base_layer"
_ADAPTER = ".lora_"
_NAME = "default"
_FILE = "adapter_model.safetensors"


def is_adapters(name: str) -> bool:
    """Whether a parameter of this name is an adapter's."""
    return _ADAPTER in name


def base_name(name: str) -> str:
    """Returns how a parameter is called in the model without adapters."""
    return name.replace(_BASE, "")


def add_adapters(whole: nn.Module, lora: LoraSection) -> None:
    """Puts adapters on the meta device into a whole model; all that it had requires no gradient afterwards.

    Raises:
        ModelError: peft is not installed, or there is nothing to adapt.
    """
    peft = import_peft()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "fan_in_fan_out")  # it is found out, and told to the user
            peft.inject_adapter_in_model(_config(lora), whole, _NAME, low_cpu_mem_usage=True)
    except ValueError as error:  # also of modules that are not of a kind to be adapted
        raise ModelError(
            f"[model.lora]: target_modules = {list(lora.target_modules)}: {' '.join(str(error).split())} Give the last "
            f'names of linear modules, or ["{ALL_LINEAR}"].'
        ) from error


def initial_values(spec: ParameterSpec, seed: int) -> torch.Tensor:
    """Returns an adapter's first values: as peft draws them, from the seed and the name. Their product is 0."""
    values = torch.zeros(spec.shape)
    with seeded(derive_seed("adapter", seed, spec.name)):
        if ".lora_A." in spec.name:
            nn.init.kaiming_uniform_(values, a=math.sqrt(5))
        elif ".lora_embedding_B." in spec.name:
            nn.init.normal_(values)
    return values


def merged(whole: nn.Module) -> dict[str, torch.Tensor]:
    """Adds adapters to the weights beside them, in place; returns the parameters as the model without adapters has
    them."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for module in whole.modules():
        if isinstance(module, BaseTunerLayer):
            with torch.no_grad():
                module.merge()
    return {base_name(name): one.detach() for name, one in whole.named_parameters() if not is_adapters(name)}


def write_adapters(folder: Path, lora: LoraSection, weights: str | None, tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes adapters as peft saves them.

    Args:
        folder: made if absent.
        lora: what they are.
        weights: the folder of the model that they are for.
        tensors: by name.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = _config(lora)
    config.base_model_name_or_path = weights
    config.save_pretrained(folder)
    named = {f"base_model.model.{name.replace(f'.{_NAME}', '')}": one.contiguous() for name, one in tensors.items()}
    save_file(named, folder / _FILE, metadata={"format": "pt"})


def _config(lora: LoraSection) -> Any:
    targets = list(lora.target_modules)
    return import_peft().LoraConfig(
        r=lora.r,
        lora_alpha=lora.lora_alpha,
        lora_dropout=lora.lora_dropout,
        target_modules=ALL_LINEAR if targets == [ALL_LINEAR] else targets or None,
    )


def import_peft() -> Any:
    """Returns peft. Raises ModelError: it cannot be imported."""
    try:
        import peft
    except ImportError as error:
        raise ModelError(
            f"[model.lora] needs peft, which cannot be imported ({error}). Install it: pip install peft."
        ) from error
    return peft
