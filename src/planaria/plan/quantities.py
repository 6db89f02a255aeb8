"""Quantities in words, for messages: sizes in bytes and numbers of things."""

from __future__ import annotations


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
