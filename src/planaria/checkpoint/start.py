"""State with which a job begins: a checkpoint of another run, or one of torch.distributed.checkpoint.

Only what is asked for is read. Parameters are found by name, the optimizer's values by name and kind.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import torch

from planaria.checkpoint.manifest import MANIFEST, PARAMETER, newest, read_manifest
from planaria.checkpoint.state import GroupState
from planaria.job.errors import UserError
from planaria.job.settings import TrainSection

_DCP = ".metadata"
_OPTIMIZER_PREFIXES = ("optimizer.state.", "optim.state.")


class Start(ABC):
    """State with which a job begins.

    Attributes:
        field: what messages call it.
        folder: where it lies, whatever else is saved later on.
    """

    def __init__(self, field: str, folder: Path) -> None:
        self.field = field
        self.folder = folder

    @property
    @abstractmethod
    def steps(self) -> int:
        """Steps that the optimizer has made: bias correction goes on from there."""

    @abstractmethod
    def _read(self, kind: str, name: str) -> torch.Tensor | None:
        """Reads a value of a parameter; None: there is none."""

    def state(self, shapes: Mapping[str, Sequence[int]], kinds: Sequence[str]) -> GroupState:
        """Returns parameters, and the optimizer's values of these kinds, in float32.

        Args:
            shapes: of the parameters, by name.
            kinds: names of the optimizer's values; none: they begin at 0.

        Raises:
            UserError: one is not there, or has another shape.
        """
        return {
            kind: {name: self._checked(kind, name, shape) for name, shape in shapes.items()}
            for kind in (PARAMETER, *kinds)
        }

    def check_frozen(self, names: Iterable[str]) -> None:
        """Refuses a start with values of what is frozen: that begins as the model gives it, not as here.

        Raises:
            UserError: there is one.
        """
        found = next((name for name in names if self._read(PARAMETER, name) is not None), None)
        if found is not None:
            raise UserError(
                f"{self.field} has {found!r}, which is not trained here and would begin as the model gives it. Give a "
                "Hugging Face folder by model.weights instead, or freeze it by learning_rate_factor = 0 and "
                "weight_decay = 0 in train.parameters."
            )

    def _checked(self, kind: str, name: str, shape: Sequence[int]) -> torch.Tensor:
        found = self._read(kind, name)
        if found is None and kind == PARAMETER:
            raise UserError(f"{self.field} has no parameter {name!r}. Start from a checkpoint of the same model.")
        if found is None:
            raise UserError(
                f"{self.field} has no {kind} of {name!r}, which train.start_optimizer needs. Set it to false, or start "
                "from a checkpoint of the same optimizer."
            )
        if tuple(found.shape) != tuple(shape):
            raise UserError(
                f"{self.field}: {name!r} has shape {tuple(found.shape)}, and the model needs {tuple(shape)}. "
                "Start from a checkpoint of the same model."
            )
        return found.to(torch.float32)


class _OfRun(Start):
    """A checkpoint of Planaria's."""

    def __init__(self, field: str, folder: Path) -> None:
        super().__init__(field, folder)
        self._manifest = read_manifest(folder, verify=False)

    @property
    def steps(self) -> int:
        job = self.folder.resolve().parents[1] / "job.json"
        before = msgspec.json.decode(job.read_bytes()) if job.is_file() else {}
        return self._manifest.step + int(before.get("train", {}).get("start_steps", 0))

    @cached_property
    def _files(self) -> dict[str, Path]:
        from safetensors import safe_open

        found: dict[str, Path] = {}
        for entry in self._manifest.groups:
            path = self.folder / entry.file
            with safe_open(path, framework="pt") as file:
                found |= dict.fromkeys(file.keys(), path)
        return found

    def _read(self, kind: str, name: str) -> torch.Tensor | None:
        from safetensors import safe_open

        path = self._files.get(f"{kind}/{name}")
        if path is None:
            return None
        with safe_open(path, framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(f"{kind}/{name}")
        return tensor


class _OfTorch(Start):
    """A folder of torch.distributed.checkpoint, with what `get_model_state_dict` or `get_state_dict` give."""

    def __init__(self, field: str, folder: Path) -> None:
        from torch.distributed.checkpoint.filesystem import FileSystemReader

        super().__init__(field, folder)
        try:
            self._metadata = FileSystemReader(folder).read_metadata().state_dict_metadata
        except Exception as error:  # it is unpickled
            raise UserError(f"{field}: {_DCP} cannot be read ({error}). Copy the folder again.") from error

    @cached_property
    def steps(self) -> int:
        for key in self._metadata:
            if key.startswith(_OPTIMIZER_PREFIXES) and key.endswith(".step"):
                return int(self._loaded(key))
        return 0

    def _read(self, kind: str, name: str) -> torch.Tensor | None:
        keys = [f"model.{name}", name]
        if kind != PARAMETER:
            keys = [f"{prefix}{name}.{kind}" for prefix in _OPTIMIZER_PREFIXES]
        return next((self._loaded(key) for key in keys if key in self._metadata), None)

    def _loaded(self, key: str) -> torch.Tensor:
        from torch.distributed.checkpoint.state_dict_loader import load

        about: Any = self._metadata[key]
        wanted = {key: torch.empty(about.size, dtype=about.properties.dtype)}
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # that there is one process alone
            load(wanted, checkpoint_id=str(self.folder), no_dist=True)
        return wanted[key]


def start_of(train: TrainSection) -> Start | None:
    """Opens what a job starts from; None: it starts from its model alone.

    Raises:
        UserError: there is no checkpoint.
    """
    if not train.start_from:
        return None
    path, field = Path(train.start_from), f"train.start_from = {train.start_from!r}"
    if (path / MANIFEST).is_file():
        return _OfRun(field, path)
    if (path / "checkpoints").is_dir():
        return _OfRun(field, newest(path / "checkpoints")[0])
    if (path / _DCP).is_file():
        return _OfTorch(field, path)
    raise UserError(
        f"{field} is no run folder, no checkpoint of one (runs/NAME/checkpoints/step-N), and no folder of "
        "torch.distributed.checkpoint. Name one. A Hugging Face folder goes into model.weights."
    )
