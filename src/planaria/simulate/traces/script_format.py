"""Texts that hold scripts: any trace is one; our own format may count committed steps in place of seconds.

In steps: JSON lines, first `{"planaria_trace": 1, "name": ..., "horizon_steps": ...}`, then
`{"at_step": ..., "change": "add" | "remove", "node": ..., "notice_steps": ...}` each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from planaria.simulate.traces.formats import BYTE_ORDER_MARK, VERSION, TraceFormat, decoded, read_trace, write_trace
from planaria.simulate.traces.repairs import Lines, Numbered, in_order
from planaria.simulate.traces.scripts import Clock, Script
from planaria.simulate.traces.trace import Change, Trace, TraceError, TraceEvent


class _Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    planaria_trace: int
    name: str
    horizon_steps: float


class _Event(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    at_step: float
    change: Change
    node: str
    zone: str = ""
    notice_steps: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadScript:
    """A script as it was read, and what was repaired or assumed, one sentence each, with the line."""

    script: Script
    repairs: tuple[str, ...] = ()


def read_script(text: str, name: str, *, seed: int = 0) -> ReadScript:
    """Reads a script, or a trace in any of its formats.

    Args:
        text: the text of the file.
        name: for messages.
        seed: draws which nodes go, where the text has only counts.

    Raises:
        TraceError: it is in no format, or says what cannot be; the message has the line.
    """
    text = text.removeprefix(BYTE_ORDER_MARK)
    rows = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not rows or '"horizon_steps"' not in rows[0][1]:
        read = read_trace(text, name, seed=seed)
        return ReadScript(script=Script(trace=read.trace), repairs=read.repairs)
    lines = Lines(name, what="script")
    first = rows[0][0]
    header = decoded(rows[0], _Header, lines)
    if header.planaria_trace != VERSION:
        raise lines.refuse(first, f"version {header.planaria_trace} of the format; this Planaria reads {VERSION}.")
    if not (math.isfinite(header.horizon_steps) and header.horizon_steps > 0):
        raise lines.refuse(first, f"horizon_steps = {header.horizon_steps:g} is not a number of steps.")
    given = [(row[0], _event(row, lines)) for row in rows[1:]]
    if not given:
        raise TraceError(f"script {name}: it has no events. Give a file with at least one node in it.")
    lines.ends(first, header.horizon_steps, given, "horizon_steps")
    events = tuple(_uncontradicted(in_order(given, lines), lines))
    trace = Trace(name=header.name, horizon_s=max(header.horizon_steps, events[-1].at_s), events=events)
    return ReadScript(script=Script(trace=trace, clock=Clock.STEPS), repairs=tuple(lines.repairs))


def write_script(script: Script) -> str:
    """Returns the script's text; `read_script` gives it back."""
    trace = script.trace
    if script.clock is Clock.SECONDS:
        return write_trace(trace, TraceFormat.EVENTS)
    header = _Header(planaria_trace=VERSION, name=trace.name, horizon_steps=trace.horizon_s)
    events = [
        _Event(at_step=e.at_s, change=e.change, node=e.node, zone=e.zone, notice_steps=e.notice_s) for e in trace.events
    ]
    return "".join(msgspec.json.encode(line).decode() + "\n" for line in (header, *events))


def _event(row: tuple[int, str], lines: Lines) -> TraceEvent:
    event = decoded(row, _Event, lines)
    for field, value in (("at_step", event.at_step), ("notice_steps", event.notice_steps)):
        if not (math.isfinite(value) and value >= 0):
            raise lines.refuse(row[0], f"{field} = {value:g} is not a number of steps from 0 on.")
    if not event.node:
        raise lines.refuse(row[0], "the node has no name.")
    return TraceEvent(
        at_s=event.at_step, change=event.change, node=event.node, zone=event.zone, notice_s=event.notice_steps
    )


def _uncontradicted(events: Sequence[Numbered], lines: Lines) -> Iterator[TraceEvent]:
    """Yields the events; raises on contradictions: what is written by hand, and counts steps, is not guessed at."""
    there: set[str] = set()
    for line, event in events:
        if (event.node in there) is (event.change is Change.ADD):
            where = "already" if event.node in there else "not"
            raise lines.refuse(line, f"{event.change} {event.node} at step {event.at_s:g}: the node is {where} there.")
        (there.add if event.change is Change.ADD else there.remove)(event.node)
        yield event
