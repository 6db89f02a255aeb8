"""The order of samples: which number comes at which place, computed where it is asked for; nothing is kept.

`keyed` permutes by a Feistel network (Luby and Rackoff 1988) over the next power of two, walking along its cycle until
a number is in range (Black and Rogaway 2002). `shuffled` is the order of runs from before there was that one: an array
in every process, kept so that their checkpoints go on as they began.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from planaria.job.history import SHUFFLED

Numbers = npt.NDArray[np.int64]

ORDER, CHANCE, SPLIT, VALIDATION, SOURCES, SAMPLES, SHUFFLE = range(7)
"""Domains of random numbers: no two of them draw from one stream."""

_ROUNDS = 4


def generator(seed: int, *path: int) -> np.random.Generator:
    """Returns the random numbers of a seed that a path names."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed % 2**64, *path])))


def permuted(places: Numbers, size: int, seed: int, *path: int) -> Numbers:
    """Returns what a permutation of range(size) has at these places, each of them in that range.

    Args:
        places: any of them, in any order.
        size: how many numbers are permuted.
        seed: with `path` names the permutation.
        path: as that of `generator`.
    """
    bits = max(2, (size - 1).bit_length())
    low = np.uint64(bits // 2)
    high_mask, low_mask = np.uint64((1 << bits - bits // 2) - 1), np.uint64((1 << bits // 2) - 1)
    keys = _keys(seed, (*path, size))
    found = places.astype(np.uint64)
    walking = np.arange(len(found))
    while len(walking):
        high, right = found[walking] >> low, found[walking] & low_mask
        for one, other in keys:
            high ^= _mixed(right ^ one) & high_mask
            right ^= _mixed(high ^ other) & low_mask
        found[walking] = high << low | right
        walking = walking[found[walking] >= size]
    return found.astype(np.int64)


def dealt(order: str, places: Numbers, size: int, seed: int, epoch: int) -> Numbers:
    """Returns the numbers that an epoch has at these places, in one of the orders."""
    if order == SHUFFLED:
        return _shuffle(seed, epoch, size)[places].astype(np.int64)
    return permuted(places, size, seed, ORDER, epoch)


@lru_cache(maxsize=64)
def _keys(seed: int, path: tuple[int, ...]) -> npt.NDArray[np.uint64]:
    return generator(seed, *path).integers(0, 2**64, (_ROUNDS, 2), dtype=np.uint64)


def _mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Mixes all bits of each number into its lowest (the finalizer of SplitMix64, Steele et al. 2014)."""
    numbers = (numbers ^ numbers >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ numbers >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return numbers ^ numbers >> np.uint64(31)


@lru_cache(maxsize=4)
def _shuffle(seed: int, epoch: int, size: int) -> npt.NDArray[Any]:
    numbers = np.arange(size, dtype=np.uint32 if size < 2**32 else np.uint64)
    generator(seed, ORDER, epoch).shuffle(numbers)
    numbers.flags.writeable = False
    return numbers
