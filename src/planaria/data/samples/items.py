"""Items of the user's datasets: what they may be, how they become tensors, and the random numbers they draw.

Generators of torch, numpy and Python are seeded for each item, and put back afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch

from planaria.data.reading.sources import DataError, DataRaised
from planaria.job.users_code import import_function, users_trace

PAIR = ("input", "labels")
"""Names of what an item is that is a pair. Torch's own modules call what they take `input`."""

SEED = 0
"""Seed of what is random where a dataset is made, and in the items that are looked at then."""

LOOKED_AT = 32
"""Items that are read when a dataset is opened."""

_KEPT = frozenset({torch.int64, torch.uint8, torch.bool, torch.float32, torch.float16, torch.bfloat16})
"""Types that stay as they are; other whole numbers become int64, others float32."""

Item = dict[str, torch.Tensor]

Kinds = dict[str, tuple[torch.Size, torch.dtype]]
"""Shapes and types of an item's tensors, by name."""


class Digest(Protocol):
    """A hash that is being made, such as hashlib's."""

    def update(self, data: Any, /) -> None: ...


def raised(named: str, what: str, error: Exception) -> DataRaised:
    """Returns the error for what the user's dataset raised."""
    text = f"{named}: {what} fails with {type(error).__name__}: {error}. Mend it there."
    return DataRaised(text, users_trace(error))


def called(source: str, config: Mapping[str, Any], field: str) -> Any:
    """Returns what the user's function returns.

    Args:
        source: "module:function".
        config: its keyword arguments.
        field: of the job, that names the source.

    Raises:
        DataRaised: the user's code raised.
        UserError: the function cannot be imported.
    """
    function = import_function(source, field)
    try:
        with drawing_aside():
            seed_all(SEED)
            return function(**config)
    except DataError:  # of a dataset of ours, such as `planaria.data.images`
        raise
    except Exception as error:  # the user's function may raise anything
        section = field.partition(".")[0]
        raise DataRaised(
            f"{field} = {source!r} fails with {type(error).__name__}: {error}. Check [{section}.config] (it was called "
            f"with {dict(config)}).",
            users_trace(error),
        ) from error


def item_of(given: object, what: str) -> Item:
    """Returns what a dataset gives as tensors by name.

    Args:
        given: by the dataset.
        what: the dataset and the item, for messages: "data.source = 'a:b': item 3".

    Raises:
        DataError: it is no item.
    """
    if isinstance(given, tuple | list) and len(given) == len(PAIR):
        given = dict(zip(PAIR, given, strict=True))
    if not isinstance(given, Mapping) or not given:
        raise DataError(
            f"{what} is a {type(given).__name__}, not a dict of tensors by name, nor a pair (input, labels). "
            "Return one of these."
        )
    item = {}
    for name, value in given.items():
        tensor = _tensor(value)
        if tensor is None:
            raise DataError(
                f"{what} has {name!r} = {_shortened(value)}, which is no tensor, array or number. Make it one, or "
                "leave it out."
            )
        item[str(name)] = tensor
    return item


def check_finite(item: Item, what: str) -> None:
    """Refuses an item that has values that are not finite. Raises DataError."""
    for name, tensor in item.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise DataError(
                f"{what} has values in {name!r} that are not finite. Mend the data; a mask may be of true and false."
            )


def count_in(digest: Digest, number: int, item: Item) -> None:
    """Adds an item to a fingerprint."""
    for name, tensor in sorted(item.items()):
        digest.update(f"{number}\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)


def kinds(item: Item) -> Kinds:
    """Returns the shapes and types of an item's tensors."""
    return {name: (tensor.shape, tensor.dtype) for name, tensor in item.items()}


def told(found: Kinds) -> str:
    """Describes what items have: "image of float32 (3, 8, 8), label of int64"."""
    return ", ".join(
        f"{name} of {str(dtype).removeprefix('torch.')}{f' {tuple(shape)}' if shape else ''}"
        for name, (shape, dtype) in found.items()
    )


def seed_all(seed: int) -> None:
    """Seeds the generators of torch (on the CPU), numpy and Python."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


@contextmanager
def drawing_aside() -> Iterator[None]:
    """Has random numbers go on outside as if none had been drawn inside."""
    of_numpy, of_python = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        np.random.set_state(of_numpy)
        random.setstate(of_python)


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


def _shortened(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
