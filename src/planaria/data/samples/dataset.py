"""Items of a map-style dataset as samples: checked, stacked to batches, and told from others by a fingerprint.

What is random in an item is a function of the microbatch and the row: the generators of torch, numpy and Python are
seeded for each item, and put back afterwards.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch

from planaria.data.order import Numbers
from planaria.data.reading.sources import DataError
from planaria.data.samples.samples import Batch
from planaria.job.errors import UserCodeError
from planaria.job.history import KEYED
from planaria.job.users_code import import_function, users_trace

PAIR = ("input", "labels")
"""Names of what an item is that is a pair. Torch's own modules call what they take `input`."""

_LOOKED_AT = 32
"""Items that are read when a dataset is opened, evenly spaced."""
_SEED = 0
"""Seed of what is random where a dataset is made, and in the items that are looked at then."""

_KEPT = frozenset({torch.int64, torch.uint8, torch.bool, torch.float32, torch.float16, torch.bfloat16})
"""Types that stay as they are; other whole numbers become int64, others float32."""

Item = dict[str, torch.Tensor]


class Dataset(Protocol):
    """Items by number, from 0.

    An item is a dict of tensors, numpy arrays or numbers by name, or a pair: `input` and `labels`. All items of a
    dataset have the same names, shapes and types. An item is a function of its number and of what the generators of
    torch, numpy (`np.random`) and Python (`random`) give while it is made.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> object: ...


class DataRaised(DataError, UserCodeError):
    """The user's dataset raised; `trace` shows where."""


class Items:
    """The items of a dataset; see `planaria.data.samples.samples.Samples`.

    Args:
        dataset: whose items they are.
        named: the job's field and its value, for messages.

    Raises:
        DataError: there are none, or those that are looked at cannot be used.
    """

    def __init__(self, dataset: Dataset, named: str) -> None:
        self.named = named
        self.unit = "samples"
        self.order = KEYED
        self._dataset = dataset
        self._size = self._length()
        with _drawing_aside():
            self._first = self._read(0, _SEED)
            self._check_again()
            self.fingerprint = self._look()

    def __len__(self) -> int:
        return self._size

    @property
    def bad_rows(self) -> tuple[int, str]:
        """How many items the dataset says that it left out, and the first of them, with the reason."""
        found: tuple[int, str] = getattr(self._dataset, "bad_rows", (0, ""))
        return found

    def batch(self, numbers: Numbers, chance: np.random.Generator) -> Batch:
        seeds = chance.integers(0, 2**32, len(numbers))
        with _drawing_aside():
            items = [self._item(int(number), int(seed)) for number, seed in zip(numbers, seeds, strict=True)]
        return {name: torch.stack([item[name] for item in items]) for name in self._first}

    def example(self, rows: int) -> Batch:
        """Returns the first items, over again where there are fewer than `rows`, as a batch."""
        return self.batch(np.arange(rows) % self._size, np.random.default_rng(_SEED))

    def check_like(self, other: Items) -> None:
        """Refuses items that are not of the same names, shapes and types as another dataset's. Raises DataError."""
        if _kinds(self._first) != _kinds(other._first):
            raise DataError(
                f"{self.named} has items of {_told(self._first)}, and {other.named} of {_told(other._first)}. "
                "Make them alike."
            )

    def _length(self) -> int:
        try:
            size = len(self._dataset)
        except Exception as error:  # the user's dataset may raise anything
            raise self._raised("its length", error) from error
        if not size:
            raise DataError(f"{self.named} has no items. Give some data.")
        return size

    def _item(self, number: int, seed: int) -> Item:
        """Returns an item, of the names, shapes and types of the first one."""
        item = self._read(number, seed)
        if _kinds(item) != _kinds(self._first):
            raise DataError(
                f"{self.named}: item {number} has {_told(item)}, and item 0 {_told(self._first)}. "
                "Make all items alike, so that they can be stacked."
            )
        return item

    def _read(self, number: int, seed: int) -> Item:
        _seed(seed)
        try:
            given = self._dataset[number]
        except Exception as error:  # the user's dataset may raise anything
            raise self._raised(f"item {number}", error) from error
        return self._tensors(number, given)

    def _tensors(self, number: int, given: object) -> Item:
        if isinstance(given, tuple | list) and len(given) == len(PAIR):
            given = dict(zip(PAIR, given, strict=True))
        if not isinstance(given, Mapping) or not given:
            raise DataError(
                f"{self.named}: item {number} is a {type(given).__name__}, not a dict of tensors by name, nor a pair "
                "(input, labels). Return one of these."
            )
        item = {}
        for name, value in given.items():
            tensor = _tensor(value)
            if tensor is None:
                raise DataError(
                    f"{self.named}: item {number} has {name!r} = {_shortened(value)}, which is no tensor, array or "
                    "number. Make it one, or leave it out."
                )
            item[str(name)] = tensor
        return item

    def _check_again(self) -> None:
        """Refuses a dataset whose first item is another the next time: nodes would train on different samples."""
        again = self._read(0, _SEED)
        if _kinds(again) != _kinds(self._first) or not all(
            torch.equal(again[name].nan_to_num(), tensor.nan_to_num()) for name, tensor in self._first.items()
        ):
            raise DataError(
                f"{self.named}: item 0 is another when it is read again. Take random numbers from torch, np.random or "
                "random, which are seeded for each item, and from no generator of your own."
            )

    def _look(self) -> str:
        """Looks at evenly spaced items; returns the fingerprint of the dataset."""
        digest = hashlib.sha256(f"{self._size}\0".encode())
        last = self._size - 1
        for number in sorted({index * last // (_LOOKED_AT - 1) for index in range(_LOOKED_AT)}):
            for name, tensor in sorted(self._item(number, _SEED).items()):
                if tensor.is_floating_point() and not tensor.isfinite().all():
                    raise DataError(
                        f"{self.named}: item {number} has values in {name!r} that are not finite. Mend the data; "
                        "a mask may be of true and false."
                    )
                digest.update(f"{number}\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
                digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def _raised(self, what: str, error: Exception) -> DataRaised:
        text = f"{self.named}: {what} fails with {type(error).__name__}: {error}. Mend it there."
        return DataRaised(text, users_trace(error))


def load_items(source: str, config: Mapping[str, Any], field: str) -> Items:
    """Returns the items of the dataset that the user's function returns.

    Args:
        source: "module:function".
        config: its keyword arguments.
        field: of the job, that names the source.

    Raises:
        DataError: it returns none that can be used; DataRaised where the user's code raised.
        UserError: the function cannot be imported.
    """
    named = f"{field} = {source!r}"
    function = import_function(source, field)
    try:
        with _drawing_aside():
            _seed(_SEED)
            dataset = function(**config)
    except DataError:  # of a dataset of ours, such as `planaria.data.images`
        raise
    except Exception as error:  # the user's function may raise anything
        section = field.partition(".")[0]
        raise DataRaised(
            f"{named} fails with {type(error).__name__}: {error}. Check [{section}.config] (it was called with "
            f"{dict(config)}).",
            users_trace(error),
        ) from error
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise DataError(
            f"{named} returns a {type(dataset).__name__}, which has no __len__ or no __getitem__. "
            "Return a map-style dataset, as torch.utils.data.Dataset is."
        )
    return Items(dataset, named)


def _tensor(value: object) -> torch.Tensor | None:
    """Returns a value of an item as a tensor on the CPU; None: it cannot be one."""
    if not isinstance(value, torch.Tensor | np.ndarray | np.generic | bool | int | float):
        return None
    try:
        if isinstance(value, torch.Tensor):
            tensor = value.detach().cpu()
        else:
            tensor = torch.from_numpy(np.array(value, order="C"))
    except (TypeError, ValueError, OverflowError):
        return None  # an array of texts or objects, or a number of more than 64 bits
    if tensor.dtype in _KEPT:
        return tensor
    if tensor.is_complex():
        return None
    return tensor.to(torch.float32 if tensor.is_floating_point() else torch.int64)


def _kinds(item: Item) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in item.items()}


def _told(item: Item) -> str:
    """Describes what an item has: "image of float32 (3, 8, 8), label of int64"."""
    return ", ".join(
        f"{name} of {str(tensor.dtype).removeprefix('torch.')}{f' {tuple(tensor.shape)}' if tensor.dim() else ''}"
        for name, tensor in item.items()
    )


def _shortened(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _seed(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


@contextmanager
def _drawing_aside() -> Iterator[None]:
    """Has random numbers go on outside as if none had been drawn inside."""
    of_numpy, of_python = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        np.random.set_state(of_numpy)
        random.setstate(of_python)
