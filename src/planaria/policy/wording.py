"""Words for reasons: numbers, sizes and lists, as sentences have them."""

from __future__ import annotations

from collections.abc import Sequence

from planaria.plan.plan import NodeId, Plan


def size(size_bytes: int) -> str:
    """In the largest unit that fits."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.1f} {unit}"
    return f"{size_bytes} bytes"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """A number of things."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def join(items: Sequence[object]) -> str:
    """A list with an "and"."""
    words = [str(item) for item in items]
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1] if words else ""


def nodes_are(nodes: Sequence[NodeId], what: str) -> str:
    """What some nodes are, as a part of a sentence."""
    one = len(nodes) == 1
    return f"{'node' if one else 'nodes'} {join(nodes)} {'is' if one else 'are'} {what}"


def capital(text: str) -> str:
    """The text as a sentence begins."""
    return text[:1].upper() + text[1:]


def time(seconds: float) -> str:
    """In the largest unit of which there are two at least."""
    for unit, scale in (("days", 86_400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= 2 * scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e3:.3g} ms"


def shape(plan: Plan) -> str:
    """The pipelines' numbers of nodes."""
    return "+".join(str(len({plan.node_of(worker) for worker in pipeline.workers})) for pipeline in plan.pipelines)
