"""Reads a local Hugging Face folder of weights tensor by tensor: only what is asked for is loaded.

Names in files become names of parameters by transformers' own mapping, which may join or divide tensors.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from planaria.job.suggestions import hub_hint
from planaria.model.model import ModelError
from planaria.model.weights.hub import local_weights

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """What of a file a parameter is made from.

    Attributes:
        keys: tensors of the files, each with the pattern of the converter that it fits ("": none).
        converter: what makes parameters of them; None: the tensor is the parameter.
        target: the parameter that the converter is called for.
    """

    keys: tuple[tuple[str, str], ...]
    converter: Any
    target: str


class WeightsFolder:
    """The safetensors of a folder, in one file or in shards.

    Args:
        path: the folder, or a model of the hub by its name.
        model_type: what its config.json must say; None: whatever it says.

    Raises:
        ModelError: the folder is missing, of another model type, or without safetensors.
    """

    def __init__(self, path: str, model_type: str | None) -> None:
        self._path = local_weights(path)
        self._field = f"model.weights = {path!r}"
        if not self._path.is_dir():
            raise ModelError(
                f"{self._field} is not a folder. Give a local Hugging Face folder with config.json.{hub_hint(path)}"
            )
        self.config = self._read_json("config.json")
        found = self.config.get("model_type")
        if found != model_type and (model_type is not None or not isinstance(found, str)):
            raise ModelError(
                f"{self._field} holds a model of type {found!r}, but model.type = {model_type or 'auto'!r}. "
                "Make them the same."
            )
        if "quantization_config" in self.config:
            raise ModelError(f"{self._field} holds quantised weights. Give a folder with the model's full weights.")
        self._sources: dict[str, _Source] | None = None

    @cached_property
    def _files(self) -> dict[str, str]:
        """Returns the file of each tensor."""
        if (self._path / _INDEX).exists():
            weight_map = self._read_json(_INDEX).get("weight_map")
            if not isinstance(weight_map, dict):
                raise ModelError(f"{self._field}: {_INDEX} has no weight_map. Save the model again.")
            return {str(name): str(file) for name, file in weight_map.items()}
        if not (self._path / _SINGLE).exists():
            raise ModelError(
                f"{self._field} has neither {_SINGLE} nor {_INDEX}. "
                "Load it with transformers and save it with save_pretrained, which writes safetensors."
            )
        with self._open(_SINGLE) as file:
            return dict.fromkeys(file.keys(), _SINGLE)

    def has(self, model: Any, name: str) -> bool:
        """Returns whether a tensor of the whole model is there."""
        return name in self._sources_for(model)

    def tensor(self, model: Any, names: tuple[str, ...], shape: tuple[int, ...]) -> torch.Tensor:
        """Reads a tensor of the whole model that bears `names` there, as float32.

        Args:
            model: the whole model, on the meta device.
            names: of one tensor; the first that is in the folder counts.
            shape: what it must have.

        Raises:
            ModelError: there is none, or its shape is not `shape`.
        """
        sources = self._sources_for(model)
        name = next((name for name in names if name in sources), None)
        if name is None:
            raise ModelError(
                f"{self._field} has no tensor {names[0]!r}. The folder must hold the whole model with its "
                "head: save it from the language model's class, not from its base model's."
            )
        tensor = self._made(model, sources[name], name)
        if tuple(tensor.shape) != shape:
            raise ModelError(
                f"{self._field}: tensor {name!r} has shape {tuple(tensor.shape)}, the model needs {shape}. "
                "Remove the overrides in [model.config] that change shapes."
            )
        return tensor.to(torch.float32).contiguous()

    def _made(self, model: Any, source: _Source, name: str) -> torch.Tensor:
        if source.converter is None:
            return self._read(source.keys[0][0])
        converter = copy.deepcopy(source.converter)
        for key, pattern in source.keys:
            converter.add_tensor(source.target, key, pattern, self._read(key))
        try:
            made = converter.convert(source.target, model=model, config=model.config)[name]
        except Exception as error:  # transformers has no one class for tensors that do not fit
            raise ModelError(
                f"{self._field}: tensor {name!r} cannot be made of {source.keys[0][0]!r} and its like ({error}). "
                "Remove the overrides in [model.config] that change shapes."
            ) from error
        tensor: torch.Tensor = made[0] if isinstance(made, list) else made
        return tensor

    def _sources_for(self, model: Any) -> Mapping[str, _Source]:
        """Returns what each tensor of the whole model is made from."""
        if self._sources is None:
            self._sources = self._find_sources(model)
        return self._sources

    def _find_sources(self, model: Any) -> dict[str, _Source]:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

        mapping = get_model_conversion_mapping(model)
        renamings = [one for one in mapping if isinstance(one, WeightRenaming)]
        converters = [one for one in mapping if isinstance(one, WeightConverter)]
        by_pattern = {pattern: one for one in converters for pattern in one.source_patterns}
        prefix, state = model.base_model_prefix, model.state_dict()
        found: dict[str, list[tuple[str, str]]] = {}
        for key in sorted(self._files, key=dot_natural_key):
            name, pattern = rename_source_key(key, renamings, converters, prefix, state)
            if name not in state and key in state:
                name, pattern = key, None
            found.setdefault(name, []).append((key, pattern or ""))
        sources = {}
        for name, keys in found.items():
            converter = by_pattern.get(keys[0][1])
            targets = (name,) if converter is None else _targets(name, converter)
            for target in targets:
                sources[target] = _Source(keys=tuple(keys), converter=converter, target=name)
        return sources

    def _read(self, key: str) -> torch.Tensor:
        with self._open(self._files[key]) as file:
            tensor: torch.Tensor = file.get_tensor(key)
        return tensor

    def _read_json(self, name: str) -> dict[str, Any]:
        try:
            content = json.loads((self._path / name).read_text())
        except FileNotFoundError as error:
            raise ModelError(f"{self._field} has no {name}. Give a folder written by save_pretrained.") from error
        except ValueError as error:
            raise ModelError(f"{self._field}: {name} is not JSON ({error}). Save the model again.") from error
        if not isinstance(content, dict):
            raise ModelError(f"{self._field}: {name} is not a JSON object. Save the model again.")
        return content

    def _open(self, name: str) -> Any:
        from safetensors import SafetensorError, safe_open

        try:
            return safe_open(self._path / name, framework="pt")
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{self._field}: cannot read {name} ({error}). Copy the folder again.") from error


def _targets(name: str, converter: Any) -> tuple[str, ...]:
    first = converter.target_patterns[0]
    return tuple(name.replace(first, other) for other in converter.target_patterns)
