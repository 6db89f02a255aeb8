"""Reads a local Hugging Face folder of weights tensor by tensor: only what is asked for is loaded."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from planaria.job.suggestions import hub_hint
from planaria.model.model import ModelError

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


class WeightsFolder:
    """The safetensors of a folder, in one file or in shards.

    Args:
        path: the folder.
        model_type: what its config.json must say.

    Raises:
        ModelError: the folder is missing, of another model type, or without safetensors.
    """

    def __init__(self, path: str, model_type: str) -> None:
        self._path = Path(path)
        self._field = f"model.weights = {path!r}"
        if not self._path.is_dir():
            raise ModelError(
                f"{self._field} is not a folder. Give a local Hugging Face folder with config.json.{hub_hint(path)}"
            )
        self.config = self._read_json("config.json")
        found = self.config.get("model_type")
        if found != model_type:
            raise ModelError(
                f"{self._field} holds a model of type {found!r}, but model.type = {model_type!r}. Make them the same."
            )

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

    def tensor(self, names: tuple[str, ...], shape: tuple[int, ...]) -> torch.Tensor:
        """Reads the first tensor that bears one of `names`, as float32.

        Raises:
            ModelError: there is none, or its shape is not `shape`.
        """
        name = next((name for name in names if name in self._files), None)
        if name is None:
            raise ModelError(
                f"{self._field} has no tensor {names[0]!r}. The folder must hold the whole model with its "
                "head: save it from the language model's class, not from its base model's."
            )
        with self._open(self._files[name]) as file:
            tensor: torch.Tensor = file.get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise ModelError(
                f"{self._field}: tensor {name!r} has shape {tuple(tensor.shape)}, the model needs {shape}. "
                "Remove the overrides in [model.config] that change shapes."
            )
        return tensor.to(torch.float32).contiguous()

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
