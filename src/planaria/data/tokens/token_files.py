"""Files of token ids: .bin (uint16 or uint32, little-endian), .npy, and Megatron's .bin with an .idx beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from planaria.data.reading.sources import DataError
from planaria.data.reading.text import check_tokens
from planaria.job.sections.data import DataSection, TokenDType

TokenArray = npt.NDArray[np.unsignedinteger[Any]] | npt.NDArray[np.signedinteger[Any]]

_CHUNK_TOKENS: Final = 1 << 22
_MAX_CHUNKS: Final = 256
_MEGATRON = b"MMIDIDX\x00\x00"
_MEGATRON_DTYPES = {1: "|u1", 2: "|i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_LOOK = 1 << 16


def open_token_file(path: Path, section: DataSection, field: str) -> TokenArray:
    """Maps a file of ids as what it says that it is.

    Raises:
        DataError: it holds none, or is another kind of file.
    """
    if path.stat().st_size == 0:
        raise DataError(f"{field}: {path} is empty. Give a file of token ids.")
    if path.suffix == ".npy":
        return map_ids(path, "", field)
    if (dtype := _megatron_dtype(path.with_suffix(".idx"), field)) is None:
        check_tokens(path, field)
        dtype = "<u2" if section.token_dtype is TokenDType.UINT16 else "<u4"
    ids = map_ids(path, dtype, field)
    if dtype == "<u2" and len(ids) > 2 and len(ids) % 2 == 0 and not ids[1:_LOOK:2].any() and ids[:_LOOK:2].any():
        raise DataError(
            f"{field}: {path} has zeros at every second place: it holds ids of 32 bits. "
            'Set data.token_dtype = "uint32".'
        )
    return ids


def check_ids(ids: TokenArray, vocab_size: int, tokenizer: str, field: str) -> None:
    """Refuses ids that the tokenizer has not. Raises DataError."""
    highest = max(int(chunk.max()) for chunk in chunks(ids))
    lowest = min(int(chunk.min()) for chunk in chunks(ids))
    if highest >= vocab_size or lowest < 0:
        raise DataError(
            f"{field} holds ids from {lowest} to {highest}, but data.tokenizer = {tokenizer!r} has "
            f"{vocab_size} tokens. Give the tokenizer that the file was made with."
        )


def map_ids(path: Path, dtype: str, field: str) -> TokenArray:
    """Maps a file of ids, read-only. Raises DataError: it is not one."""
    try:
        if path.suffix == ".npy":
            ids: TokenArray = np.load(path, mmap_mode="r", allow_pickle=False)
        else:
            ids = np.memmap(path, dtype=dtype, mode="r")
    except (OSError, ValueError) as error:
        raise DataError(f"{field}: cannot map {path} ({error}). Give a file of token ids.") from error
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer) or len(ids) == 0:
        raise DataError(
            f"{field}: {path} holds an array of shape {ids.shape} and type {ids.dtype}. "
            "Save a one-dimensional array of integers that is not empty."
        )
    return ids


def chunks(ids: TokenArray) -> Iterator[TokenArray]:
    """Yields all of the ids in pieces; of a very long array, evenly spaced pieces with the first and the last."""
    starts = range(0, len(ids), _CHUNK_TOKENS)
    if len(starts) > _MAX_CHUNKS:
        starts_kept = [starts[index * (len(starts) - 1) // (_MAX_CHUNKS - 1)] for index in range(_MAX_CHUNKS)]
    else:
        starts_kept = list(starts)
    for start in starts_kept:
        yield ids[start : start + _CHUNK_TOKENS]


def _megatron_dtype(index: Path, field: str) -> str | None:
    """Returns the type of the ids that an index file describes; None: there is none."""
    try:
        with index.open("rb") as file:
            head = file.read(len(_MEGATRON) + 9)
    except OSError:
        return None
    if not head.startswith(_MEGATRON) or len(head) < len(_MEGATRON) + 9:
        raise DataError(f"{field}: {index} is no index of Megatron's. Move it away, or make the data again.")
    code = head[-1]
    if code not in _MEGATRON_DTYPES:
        raise DataError(f"{field}: {index} says that ids have type {code}, which is none of integers. Make it again.")
    return _MEGATRON_DTYPES[code]
