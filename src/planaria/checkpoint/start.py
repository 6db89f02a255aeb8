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

from planaria.checkpoint.manifest import MANIFEST, PARAMETER, newest_in_store, place_of, read_manifest
from planaria.checkpoint.state import GroupState
from planaria.checkpoint.store import GroupTensors, Place, store_at
from planaria.job.errors import UserError
from planaria.job.sections.train import TrainSection
from planaria.job.values import is_url
from planaria.model.model import Model
from planaria.model.training.optimizer import optimizer_of

_DCP = ".metadata"
_ANOTHER = "Copy it again, or start from another."
_OPTIMIZER_PREFIXES = ("optimizer.state.", "optim.state.")


class Start(ABC):
    """State with which a job begins.

    Attributes:
        field: what messages call it.
        folder: where it lies, whatever else is saved later on.
    """

    def __init__(self, field: str, folder: Place) -> None:
        self.field = field
        self.folder = folder

    @property
    @abstractmethod
    def steps(self) -> int:
        """Steps that the optimizer has made: bias correction goes on from there."""

    @abstractmethod
    def _shape(self, kind: str, name: str) -> tuple[int, ...] | None:
        """Returns the shape of a value of a parameter; None: there is none."""

    @abstractmethod
    def _read(self, kind: str, name: str) -> torch.Tensor:
        """Reads a value that there is."""

    def state(self, shapes: Mapping[str, Sequence[int]], kinds: Sequence[str]) -> GroupState:
        """Returns parameters, and the optimizer's values of these kinds, in float32.

        Args:
            shapes: of the parameters, by name.
            kinds: names of the optimizer's values; none: they begin at 0.

        Raises:
            UserError: one is not there, or has another shape.
        """
        self.check(shapes, kinds)
        return {
            kind: {name: self._read(kind, name).to(torch.float32) for name in shapes} for kind in (PARAMETER, *kinds)
        }

    def check(self, shapes: Mapping[str, Sequence[int]], kinds: Sequence[str]) -> None:
        """Checks that all is there that `state` returns, without reading it.

        Raises:
            UserError: one is not there, or has another shape.
        """
        for kind in (PARAMETER, *kinds):
            for name, shape in shapes.items():
                self._check(kind, name, tuple(shape))

    def check_frozen(self, names: Iterable[str]) -> None:
        """Refuses a start with values of what is frozen: that begins as the model gives it, not as here.

        Raises:
            UserError: there is one.
        """
        found = next((name for name in names if self._shape(PARAMETER, name) is not None), None)
        if found is not None:
            raise UserError(
                f"{self.field} has {found!r}, which is not trained here and would begin as the model gives it. Give a "
                "Hugging Face folder by model.weights instead, or freeze it by learning_rate_factor = 0 and "
                "weight_decay = 0 in train.parameters."
            )

    def _check(self, kind: str, name: str, shape: tuple[int, ...]) -> None:
        found = self._shape(kind, name)
        if found is None and kind == PARAMETER:
            raise UserError(f"{self.field} has no parameter {name!r}. Start from a checkpoint of the same model.")
        if found is None:
            raise UserError(
                f"{self.field} has no {kind} of {name!r}, which train.start_optimizer needs. Set it to false, or start "
                "from a checkpoint of the same optimizer."
            )
        if found != shape:
            what = repr(name) if kind == PARAMETER else f"{kind} of {name!r}"
            raise UserError(
                f"{self.field}: {what} has shape {found}, and the model needs {shape}. "
                "Start from a checkpoint of the same model, or give [model] that one's sizes."
            )


class _OfRun(Start):
    """A checkpoint of Planaria's."""

    def __init__(self, field: str, folder: Place, *, verify: bool) -> None:
        super().__init__(field, folder)
        try:
            self._manifest = read_manifest(folder, verify=verify)
        except UserError as error:
            raise UserError(f"{field}: {error}. {_ANOTHER}") from None

    @property
    def steps(self) -> int:
        return self._manifest.step + (self._manifest.start_steps or self._start_steps)

    @property
    def _start_steps(self) -> int:
        """Steps that the optimizer had made before the run, as its folder says: earlier manifests do not."""
        if is_url(str(self.folder)):
            return 0
        job = Path(self.folder).resolve().parents[1] / "job.json"
        before = msgspec.json.decode(job.read_bytes()) if job.is_file() else {}
        return int(before.get("train", {}).get("start_steps", 0))

    @cached_property
    def _files(self) -> dict[str, GroupTensors]:
        """The file of each value."""
        found: dict[str, GroupTensors] = {}
        store = store_at(self.folder)
        for entry in self._manifest.groups:
            tensors = store.tensors(entry.file)
            found |= dict.fromkeys(tensors.keys(), tensors)
        return found

    def _shape(self, kind: str, name: str) -> tuple[int, ...] | None:
        found = self._files.get(f"{kind}/{name}")
        return None if found is None else found.get_shape(f"{kind}/{name}")

    def _read(self, kind: str, name: str) -> torch.Tensor:
        key = f"{kind}/{name}"
        return torch.from_numpy(self._files[key].get_tensor(key))


class _OfTorch(Start):
    """A folder of torch.distributed.checkpoint, with what `get_model_state_dict` or `get_state_dict` give."""

    def __init__(self, field: str, folder: Path) -> None:
        from torch.distributed.checkpoint.filesystem import FileSystemReader

        super().__init__(field, folder)
        try:
            metadata = FileSystemReader(folder).read_metadata()
            self._metadata = metadata.state_dict_metadata
            ends = [(part.relative_path, part.offset + part.length) for part in (metadata.storage_data or {}).values()]
        except Exception as error:  # it is unpickled
            raise UserError(f"{field}: {_DCP} cannot be read ({error}). {_ANOTHER}") from error
        for name, end in ends:
            path = folder / name
            if not path.is_file() or path.stat().st_size < end:
                what = "is shorter than its .metadata says" if path.is_file() else "is missing"
                raise UserError(f"{field}: {path} {what}. {_ANOTHER}")

    @cached_property
    def steps(self) -> int:
        for key in self._metadata:
            if key.startswith(_OPTIMIZER_PREFIXES) and key.endswith(".step"):
                return int(self._loaded(key))
        return 0

    def _shape(self, kind: str, name: str) -> tuple[int, ...] | None:
        key = self._key(kind, name)
        size = None if key is None else getattr(self._metadata[key], "size", None)
        return None if size is None else tuple(size)

    def _read(self, kind: str, name: str) -> torch.Tensor:
        key = self._key(kind, name)
        assert key is not None
        return self._loaded(key)

    def _key(self, kind: str, name: str) -> str | None:
        """Returns what a value is called there; None: there is none."""
        keys = [f"model.{name}", name]
        if kind != PARAMETER:
            keys = [f"{prefix}{name}.{kind}" for prefix in _OPTIMIZER_PREFIXES]
        return next((key for key in keys if key in self._metadata), None)

    def _loaded(self, key: str) -> torch.Tensor:
        from torch.distributed.checkpoint.state_dict_loader import load

        about: Any = self._metadata[key]
        wanted = {key: torch.empty(about.size, dtype=about.properties.dtype)}
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # that there is one process alone
            load(wanted, checkpoint_id=str(self.folder), no_dist=True)
        return wanted[key]


def start_of(train: TrainSection, *, verify: bool = False) -> Start | None:
    """Opens what a job starts from; None: it starts from its model alone.

    Args:
        train: the job's numbers.
        verify: read every file of a checkpoint once, to see that it is whole.

    Raises:
        UserError: there is no checkpoint, or it is not whole.
    """
    if not train.start_from:
        return None
    path, field = Path(train.start_from), f"train.start_from = {train.start_from!r}"
    if is_url(train.start_from):
        return _OfRun(field, _newest_in_store(field, train.start_from.rstrip("/")), verify=verify)
    if (path / MANIFEST).is_file():
        return _OfRun(field, path, verify=verify)
    if (path / "checkpoints").is_dir():
        return _OfRun(field, _newest(field, path / "checkpoints"), verify=False)
    if (path / _DCP).is_file():
        return _OfTorch(field, path)
    if next(path.glob("group-*.safetensors*"), None) is not None:
        raise UserError(f"{field} has no {MANIFEST}: the checkpoint was not finished. {_ANOTHER}")
    if not path.exists():
        raise UserError(f"{field} does not exist. Correct the path.")
    raise UserError(
        f"{field} is no run folder, no checkpoint of one (runs/NAME/checkpoints/step-N), and no folder of "
        "torch.distributed.checkpoint. Name one. A Hugging Face folder goes into model.weights."
    )


def _newest_in_store(field: str, url: str) -> Place:
    """Returns the checkpoint that a URL names, or the newest one under it."""
    try:
        return newest_in_store(url)
    except OSError as error:
        raise UserError(f"{field} cannot be read: {error.strerror or error}. Check the URL and the network.") from None


def _newest(field: str, root: Path) -> Place:
    """Returns the newest checkpoint of a run that is whole."""
    complaints = []
    for folder in sorted(root.glob("step-*"), reverse=True):
        place = place_of(folder)
        try:
            read_manifest(place)
        except UserError as error:
            complaints.append(str(error))
        else:
            return place
    why = f": {'; '.join(complaints)}" if complaints else ""
    raise UserError(f"{field} has no checkpoint that is whole{why}. {_ANOTHER}")


def check_start(train: TrainSection, model: Model) -> None:
    """Checks that a job can start with what it names, without reading it.

    Raises:
        UserError: it is not there, or does not fit the model.
    """
    start = start_of(train)
    if start is None:
        return
    start.check_frozen(spec.name for spec in model.frozen)
    for group in model.groups:
        kinds = optimizer_of(train).states(train) if train.start_optimizer and not group.is_statistics else ()
        start.check({spec.name: spec.shape for spec in group.parameters}, tuple(kinds))
