"""Sections of a report as values: charts, tables, shares of time. `report.js` draws them; nothing here is markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

Points = tuple[tuple[float, float | None], ...]

_LINE_KINDS = 8
"""Colours of lines in page.css: run0 to run7."""

_MOST_MARKS = 300
"""More could not be told apart; what nodes there were is still drawn."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a chart. `kind`: its classes in page.css; `band`: (x, low, high) around it."""

    name: str
    points: Points
    kind: str
    band: tuple[tuple[float, float, float], ...] = ()


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened at x. `kind`: "lost" or "joined"."""

    x: float
    kind: str
    text: str


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """Lines over time in seconds, or over what `word` names.

    Attributes:
        label: its heading.
        lines: in the order of the legend.
        marks: vertical lines.
        word: of the x axis; "": time.
        height: in units of which the chart is 1060 wide.
    """

    label: str
    lines: tuple[Line, ...]
    marks: tuple[Mark, ...] = ()
    word: str = ""
    height: int = 260


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table of text."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """A bar of seconds by cause: (cause, seconds, its class in page.css)."""

    name: str
    parts: tuple[tuple[str, float, str], ...]


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a report, drawn in this order."""

    title: str
    charts: tuple[Chart, ...] = ()
    shares: tuple[Shares, ...] = ()
    table: Table | None = None
    notes: tuple[str, ...] = ()


class Sheet(msgspec.Struct, frozen=True, kw_only=True):
    """A whole report of something that is no run."""

    title: str
    subtitle: str
    sections: tuple[Section, ...]


def line_kind(number: int) -> str:
    """Returns the class of a chart's line by its number."""
    return f"run{number % _LINE_KINDS}"


def steps(at: Sequence[float], values: Sequence[float]) -> Points:
    """Returns the points of a value that holds from each time to the next."""
    found: list[tuple[float, float | None]] = []
    for (begin, value), (end, _) in pairwise(zip(at, values, strict=True)):
        found += [(begin, value), (end, value)]
    if at:
        found.append((at[-1], values[-1]))
    return tuple(found)


def changes(counts: Iterable[tuple[float, float]]) -> tuple[Mark, ...]:
    """Returns marks where nodes went or came, from how many there were over time; none where they are too
    many to be told apart."""
    marks = []
    for (_, before), (at, now) in pairwise(counts):
        if now != before:
            number = abs(round(now - before))
            kind = "lost" if now < before else "joined"
            marks.append(Mark(x=at, kind=kind, text=f"{number} node{'s' if number > 1 else ''} {kind}"))
    return tuple(marks) if len(marks) <= _MOST_MARKS else ()
