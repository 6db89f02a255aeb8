"""Items of a map-style dataset as samples: checked, stacked to batches, and told from others by a fingerprint.

What is random in an item is a function of the microbatch and the row: the generators of torch, numpy and Python are
seeded for each item, and put back afterwards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch

from planaria.data.order import Numbers
from planaria.data.reading.sources import DataError
from planaria.data.samples.items import (
    LOOKED_AT,
    SEED,
    Item,
    Kinds,
    called,
    check_finite,
    count_in,
    drawing_aside,
    item_of,
    kinds,
    raised,
    seed_all,
    told,
)
from planaria.data.samples.samples import Batch
from planaria.job.history import KEYED


class Dataset(Protocol):
    """Items by number, from 0.

    An item is a dict of tensors, numpy arrays or numbers by name, or a pair: `input` and `labels`. All items of a
    dataset have the same names, shapes and types. An item is a function of its number and of what the generators of
    torch, numpy (`np.random`) and Python (`random`) give while it is made.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> object: ...


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
        with drawing_aside():
            self._first = self._read(0, SEED)
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
        with drawing_aside():
            items = [self._item(int(number), int(seed)) for number, seed in zip(numbers, seeds, strict=True)]
        return {name: torch.stack([item[name] for item in items]) for name in self._first}

    def example(self, rows: int) -> Batch:
        """Returns the first items, over again where there are fewer than `rows`, as a batch."""
        return self.batch(np.arange(rows) % self._size, np.random.default_rng(SEED))

    @property
    def kinds(self) -> Kinds:
        """Shapes and types of all items' tensors."""
        return kinds(self._first)

    def check_like(self, other: Kinds, other_named: str) -> None:
        """Refuses items that are not of the same names, shapes and types as another dataset's. Raises DataError."""
        if self.kinds != other:
            raise DataError(
                f"{self.named} has items of {told(self.kinds)}, and {other_named} of {told(other)}. Make them alike."
            )

    def _length(self) -> int:
        try:
            size = len(self._dataset)
        except Exception as error:  # the user's dataset may raise anything
            raise raised(self.named, "its length", error) from error
        if not size:
            raise DataError(f"{self.named} has no items. Give some data.")
        return size

    def _item(self, number: int, seed: int) -> Item:
        """Returns an item, of the names, shapes and types of the first one."""
        item = self._read(number, seed)
        if kinds(item) != self.kinds:
            raise DataError(
                f"{self.named}: item {number} has {told(kinds(item))}, and item 0 {told(self.kinds)}. "
                "Make all items alike, so that they can be stacked."
            )
        return item

    def _read(self, number: int, seed: int) -> Item:
        seed_all(seed)
        try:
            given = self._dataset[number]
        except Exception as error:  # the user's dataset may raise anything
            raise raised(self.named, f"item {number}", error) from error
        return item_of(given, f"{self.named}: item {number}")

    def _check_again(self) -> None:
        """Refuses a dataset whose first item is another the next time: nodes would train on different samples."""
        again = self._read(0, SEED)
        if kinds(again) != self.kinds or not all(
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
        for number in sorted({index * last // (LOOKED_AT - 1) for index in range(LOOKED_AT)}):
            item = self._item(number, SEED)
            check_finite(item, f"{self.named}: item {number}")
            count_in(digest, number, item)
        return digest.hexdigest()


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
    return items_of(called(source, config, field), f"{field} = {source!r}")


def items_of(dataset: Any, named: str) -> Items:
    """Returns the items of what a function of the user's returned. Raises DataError: it is no map-style dataset."""
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise DataError(
            f"{named} returns a {type(dataset).__name__}, which has no __len__ or no __getitem__. "
            "Return a map-style dataset, as torch.utils.data.Dataset is."
        )
    return Items(dataset, named)
