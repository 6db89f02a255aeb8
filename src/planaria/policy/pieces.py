"""Work in pieces: a generator that yields None wherever it may pause, and returns what it found out."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

Found = TypeVar("Found")

Pieces = Generator[None, None, Found]
"""Work of which each piece is short."""


def finished(work: Pieces[Found]) -> Found:
    """All of the work at once."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            found: Found = end.value
            return found
