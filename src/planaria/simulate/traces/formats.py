"""Texts that hold traces: what each line means, what is repaired and said, and what is refused.

Formats:
- `bamboo`: lines `milliseconds,add|remove,node`, as Bamboo's repository has its traces of Amazon instances;
- `counts`: lines `date, time, running nodes`, as it has those of Google's;
- `availability`: JSON `{"metadata": {"gap_seconds": s}, "data": [nodes, ...]}`, one number for each gap;
- `events`: our own, JSON lines: first `{"planaria_trace": 1, "name": ..., "horizon_s": ...}`, then a `TraceEvent` each,
  or a `DeviceEvent`.

Counts do not say which node goes: it is drawn, with a seed.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TypeVar

import msgspec

from planaria.simulate.traces.repairs import Lines, Numbered, consistent, consistent_devices, drawn, in_order
from planaria.simulate.traces.trace import Change, DeviceChange, DeviceEvent, Trace, TraceError, TraceEvent

VERSION = 1
"""Version of our own format."""

MOST_NODES = 1_000_000
"""Most nodes in a file of counts; larger numbers are mistakes, and each node takes memory."""

LONGEST_S = 1e10
"""Longest trace in seconds: three hundred years."""

BYTE_ORDER_MARK = "\ufeff"
"""The mark with which some programs begin a text."""


class TraceFormat(enum.StrEnum):
    BAMBOO = "bamboo"
    COUNTS = "counts"
    AVAILABILITY = "availability"
    EVENTS = "events"


class _Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    planaria_trace: int
    name: str
    horizon_s: float


class _Kind(msgspec.Struct, frozen=True):
    change: str = ""


class _Metadata(msgspec.Struct, frozen=True):
    gap_seconds: float


class _Availability(msgspec.Struct, frozen=True):
    metadata: _Metadata
    data: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTrace:
    """A trace as it was read.

    Attributes:
        trace: what the text says, repaired.
        repairs: what was repaired or assumed, one sentence each, with the line.
    """

    trace: Trace
    repairs: tuple[str, ...]


def read_trace(text: str, name: str, *, seed: int = 0) -> ReadTrace:
    """Reads a trace in any of the formats.

    Args:
        text: the text of the file.
        name: for messages; our own format has one of its own.
        seed: draws which nodes go, where the text has only counts.

    Raises:
        TraceError: it is in no format, or says what cannot be; the message has the line.
    """
    lines = Lines(name)
    text = text.removeprefix(BYTE_ORDER_MARK)
    events, horizon_s, own_name, devices = _READERS[_format_of(text, lines)](text, lines, seed)
    both: list[tuple[int, TraceEvent | DeviceEvent]] = [*events, *devices]
    for line, event in both:
        if event.at_s > LONGEST_S:
            raise lines.refuse(line, f"{event.at_s:g} s after the beginning is later than {LONGEST_S:g} s.")
    kept = tuple(consistent(in_order(events, lines), lines))
    if not kept:
        raise TraceError(f"trace {name}: it has no events. Give a file with at least one node in it.")
    of_devices = tuple(consistent_devices(kept, devices, lines))
    horizon_s = max(horizon_s, kept[-1].at_s, *(event.at_s for event in of_devices[-1:]))
    if horizon_s <= 0:
        raise TraceError(f"trace {name}: it ends when it begins. Give a trace that covers some time.")
    trace = Trace(name=own_name, horizon_s=horizon_s, events=kept, device_events=of_devices)
    return ReadTrace(trace=trace, repairs=tuple(lines.repairs))


def write_trace(trace: Trace, form: TraceFormat, *, gap_s: float = 60.0) -> str:
    """Returns the trace's text. Counts and availability lose each node's name and zone; only ours keeps everything,
    and any losses of devices.

    Args:
        trace: the trace to write.
        form: the format to write.
        gap_s: seconds between two numbers of `availability`; whoever comes and goes in between is not seen.
    """
    match form:
        case TraceFormat.EVENTS:
            header = _Header(planaria_trace=VERSION, name=trace.name, horizon_s=trace.horizon_s)
            return "".join(msgspec.json.encode(line).decode() + "\n" for line in (header, *trace.all_events))
        case TraceFormat.BAMBOO:
            return "".join(f"{round(e.at_s * 1e3)},{e.change},{e.node}\n" for e in trace.events)
        case TraceFormat.COUNTS:
            counts = list(trace.counts())
            if counts[0][0] > 0:
                counts.insert(0, (0.0, 0))
            if counts[-1][0] < trace.horizon_s:
                counts.append((trace.horizon_s, counts[-1][1]))
            began = datetime(2000, 1, 1)
            times = ((began + timedelta(seconds=round(at_s)), count) for at_s, count in counts)
            return "".join(f"{at:%Y-%m-%d, %H:%M:%S}, {count}\n" for at, count in times)
        case TraceFormat.AVAILABILITY:
            data = list(_sampled(trace, gap_s))
            return msgspec.json.encode({"metadata": {"gap_seconds": gap_s}, "data": data}).decode() + "\n"


def _sampled(trace: Trace, gap_s: float) -> Iterator[int]:
    counts, count = list(reversed(list(trace.counts()))), 0
    for at in range(math.ceil(trace.horizon_s / gap_s)):
        while counts and counts[-1][0] <= at * gap_s:
            count = counts.pop()[1]
        yield count


# Reading

_Read = tuple[list[Numbered], float, str, list[tuple[int, DeviceEvent]]]
"""A text's events, its end in seconds as far as it is known, the trace's name, and events of devices."""


def _format_of(text: str, lines: Lines) -> TraceFormat:
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if not first:
        raise TraceError(f"trace {lines.name}: it is empty. Give a file with at least one node in it.")
    if first.startswith("{"):
        return TraceFormat.EVENTS if '"planaria_trace"' in first else TraceFormat.AVAILABILITY
    columns = [column.strip() for column in first.split(",")]
    if len(columns) == 3:
        return TraceFormat.COUNTS if "-" in columns[0][1:] else TraceFormat.BAMBOO
    raise lines.refuse(
        1,
        f"{first[:60]!r} begins no trace. Known are `milliseconds,add|remove,node`, `date, time, nodes`, "
        'JSON {"metadata": {"gap_seconds": s}, "data": [...]}, and what `planaria trace generate` writes.',
    )


def _rows(text: str, lines: Lines) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        columns = [column.strip() for column in line.split(",")]
        if len(columns) != 3:
            raise lines.refuse(number, f"{line.strip()[:60]!r} has {len(columns)} columns instead of 3.")
        yield number, columns


def _read_bamboo(text: str, lines: Lines, seed: int) -> _Read:
    events: list[Numbered] = []
    for number, (time, change, node) in _rows(text, lines):
        try:
            at_s = int(time) / 1e3
        except (ValueError, OverflowError):
            raise lines.refuse(number, f"time {time[:40]!r} is not a whole number of milliseconds.") from None
        if change not in Change.__members__.values():
            raise lines.refuse(number, f"{change[:40]!r} is neither add nor remove.")
        if not node:
            raise lines.refuse(number, "the node has no name.")
        if at_s < 0:
            raise lines.refuse(number, f"time {time} is negative. Count from the trace's beginning.")
        events.append((number, TraceEvent(at_s=at_s, change=Change(change), node=node)))
    return events, 0.0, lines.name, []


def _read_counts(text: str, lines: Lines, seed: int) -> _Read:
    counted: list[tuple[int, datetime, int]] = []
    for number, (date, time, count) in _rows(text, lines):
        try:
            at = datetime.fromisoformat(f"{date} {time}")
        except ValueError:
            raise lines.refuse(number, f"{date[:20]!r}, {time[:20]!r} is not a date and a time of day.") from None
        if counted and (at.tzinfo is None) is not (counted[0][1].tzinfo is None):
            first = counted[0][0]
            raise lines.refuse(number, f"this line or line {first} has a time zone, and the other has none.")
        counted.append((number, at, _count(count, number, lines)))
    for before, after in pairwise(counted):
        if after[1] < before[1]:
            lines.repaired(after[0], f"it is earlier than line {before[0]}; the lines were sorted by time")
    counted.sort(key=lambda row: row[1])
    began = counted[0][1]
    series = [(number, (at - began).total_seconds(), count) for number, at, count in counted]
    return list(drawn(series, lines, seed)), series[-1][1], lines.name, []


def _count(text: str, line: int, lines: Lines) -> int:
    try:
        count = int(text)
    except ValueError:
        raise lines.refuse(line, f"{text[:40]!r} is not a number of nodes.") from None
    if count < 0:
        raise lines.refuse(line, f"{count} nodes are less than none.")
    if count > MOST_NODES:
        raise lines.refuse(line, f"{_large(count)} nodes are more than {MOST_NODES:,}.")
    return count


def _large(count: int) -> str:
    """Returns a number as text: Python refuses to print integers of thousands of digits, and nobody reads them."""
    return f"{count:,}" if count < 10**18 else "10**18 or more"


def _read_availability(text: str, lines: Lines, seed: int) -> _Read:
    try:
        series = msgspec.json.decode(text.encode(), type=_Availability)
    except msgspec.DecodeError as error:
        raise TraceError(
            f'trace {lines.name}: {error}. Expected {{"metadata": {{"gap_seconds": s}}, "data": [nodes, ...]}}.'
        ) from None
    gap_s = series.metadata.gap_seconds
    if not (math.isfinite(gap_s) and gap_s > 0):
        raise TraceError(f"trace {lines.name}: metadata.gap_seconds = {gap_s:g} is not a positive number of seconds.")
    for at, count in enumerate(series.data, 1):
        if count < 0:
            raise TraceError(f"trace {lines.name}: data entry {at} is {count}; nodes cannot be less than none.")
        if count > MOST_NODES:
            raise TraceError(f"trace {lines.name}: data entry {at} is {_large(count)}, more than {MOST_NODES:,} nodes.")
    lines.unit = "data entry"
    counted = [(at + 1, at * gap_s, count) for at, count in enumerate(series.data)]
    return list(drawn(counted, lines, seed)), len(series.data) * gap_s, lines.name, []


def _read_events(text: str, lines: Lines, seed: int) -> _Read:
    rows = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if '"horizon_steps"' in rows[0][1]:
        raise TraceError(f"trace {lines.name} counts steps, so it has no times. planaria drill and compare play it.")
    header = decoded(rows[0], _Header, lines)
    if header.planaria_trace != VERSION:
        raise lines.refuse(rows[0][0], f"version {header.planaria_trace} of the format; this Planaria reads {VERSION}.")
    if not 0 < header.horizon_s <= LONGEST_S:
        raise lines.refuse(rows[0][0], f"horizon_s = {header.horizon_s:g} is not a number of seconds above 0.")
    events: list[Numbered] = []
    devices: list[tuple[int, DeviceEvent]] = []
    for row in rows[1:]:
        if decoded(row, _Kind, lines).change in DeviceChange.__members__.values():
            lost = decoded(row, DeviceEvent, lines)
            _check_event(row[0], {"at_s": lost.at_s}, lost.node, lines)
            if lost.device < 0:
                raise lines.refuse(row[0], f"device = {lost.device} is not a number from 0 on.")
            devices.append((row[0], lost))
            continue
        event = decoded(row, TraceEvent, lines)
        _check_event(row[0], {"at_s": event.at_s, "notice_s": event.notice_s}, event.node, lines)
        events.append((row[0], event))
    lines.ends(rows[0][0], header.horizon_s, [*events, *devices], "horizon_s")
    return events, header.horizon_s, header.name, devices


def _check_event(line: int, times: Mapping[str, float], node: str, lines: Lines) -> None:
    for field, value in times.items():
        if not (math.isfinite(value) and value >= 0):
            raise lines.refuse(line, f"{field} = {value:g} is not a number of seconds from 0 on.")
    if not node:
        raise lines.refuse(line, "the node has no name.")


_Decoded = TypeVar("_Decoded")


def decoded(row: tuple[int, str], kind: type[_Decoded], lines: Lines) -> _Decoded:
    """Returns what a line says in JSON. Raises TraceError."""
    try:
        return msgspec.json.decode(row[1].encode(), type=kind)
    except msgspec.DecodeError as error:
        raise lines.refuse(row[0], f"{error}.") from None


_READERS: Mapping[TraceFormat, Callable[[str, Lines, int], _Read]] = {
    TraceFormat.BAMBOO: _read_bamboo,
    TraceFormat.COUNTS: _read_counts,
    TraceFormat.AVAILABILITY: _read_availability,
    TraceFormat.EVENTS: _read_events,
}
