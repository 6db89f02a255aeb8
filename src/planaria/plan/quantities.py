"""Quantities in words, for messages: sizes in bytes and numbers of things; and numbers that follow each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def size(size_bytes: int) -> str:
    """Returns bytes in the largest unit that fits: "1.5 MB" (10**6 bytes)."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.1f} {unit}"
    return f"{size_bytes} bytes"


def count(number: int, noun: str) -> str:
    """Returns a number of things: "1 node", "2 batches", "2 recoveries"."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("y") and not noun.endswith("ay"):
        return f"{number} {noun[:-1]}ies"
    return f"{number} {noun}es" if noun.endswith("ch") else f"{number} {noun}s"


def ranges(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yields numbers from 0 on, in their order, as ranges [first, end) of those that follow each other."""
    first = end = -1
    for number in numbers:
        if number != end:
            if end > first:
                yield first, end
            first = number
        end = number + 1
    if end > first:
        yield first, end
