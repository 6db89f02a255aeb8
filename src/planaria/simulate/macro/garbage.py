"""Garbage: how often Python looks for cycles while a run is simulated."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

RARELY = 50_000
"""Objects more than before, between two looks. Plans of a thousand nodes are many objects and no cycles, and with the
usual 700 a fifth of the time went into looking at them."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Look for cycles seldom for now."""
    before = gc.get_threshold()
    if before[0]:  # else whoever is around has turned it off
        gc.set_threshold(max(RARELY, before[0]), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
