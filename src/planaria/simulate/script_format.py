"""Texts that hold scripts: any trace is one; our own format may count committed steps in place of seconds.

In steps: JSON lines, first `{"planaria_trace": 1, "name": ..., "horizon_steps": ...}`, then
`{"at_step": ..., "change": "add" | "remove", "node": ..., "notice_steps": ...}` each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from planaria.simulate.scripts import Clock, Script
from planaria.simulate.trace import Change, Trace, TraceError, TraceEvent
from planaria.simulate.trace_formats import VERSION, TraceFormat, read_trace, write_trace


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
    """Read a script, or a trace in any of its formats.

    Args:
        text: the file's.
        name: for messages.
        seed: draws which nodes go, where the text has only counts.

    Raises:
        TraceError: it is in no format, or says what cannot be; the message has the line.
    """
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines or '"horizon_steps"' not in lines[0][1]:
        read = read_trace(text, name, seed=seed)
        return ReadScript(script=Script(trace=read.trace), repairs=read.repairs)
    header = _decoded(lines[0], _Header, name)
    if header.planaria_trace != VERSION:
        raise TraceError(
            f"script {name}, line {lines[0][0]}: version {header.planaria_trace} of the format; this Planaria reads "
            f"{VERSION}."
        )
    if not (math.isfinite(header.horizon_steps) and header.horizon_steps > 0):
        raise TraceError(
            f"script {name}, line {lines[0][0]}: horizon_steps = {header.horizon_steps:g} is not a number of steps."
        )
    events = sorted((_event(line, name) for line in lines[1:]), key=lambda event: event.at_s)
    if not events:
        raise TraceError(f"script {name}: it has no events. Give a file with at least one node in it.")
    trace = Trace(name=header.name, horizon_s=max(header.horizon_steps, events[-1].at_s), events=tuple(events))
    return ReadScript(script=Script(trace=trace, clock=Clock.STEPS))


def write_script(script: Script) -> str:
    """The script's text; `read_script` gives it back."""
    trace = script.trace
    if script.clock is Clock.SECONDS:
        return write_trace(trace, TraceFormat.EVENTS)
    header = _Header(planaria_trace=VERSION, name=trace.name, horizon_steps=trace.horizon_s)
    events = [
        _Event(at_step=e.at_s, change=e.change, node=e.node, zone=e.zone, notice_steps=e.notice_s) for e in trace.events
    ]
    return "".join(msgspec.json.encode(line).decode() + "\n" for line in (header, *events))


_Decoded = TypeVar("_Decoded", bound=msgspec.Struct)


def _decoded(line: tuple[int, str], kind: type[_Decoded], name: str) -> _Decoded:
    try:
        return msgspec.json.decode(line[1].encode(), type=kind)
    except msgspec.DecodeError as error:
        raise TraceError(f"script {name}, line {line[0]}: {error}.") from None


def _event(line: tuple[int, str], name: str) -> TraceEvent:
    event = _decoded(line, _Event, name)
    for field, value in (("at_step", event.at_step), ("notice_steps", event.notice_steps)):
        if not (math.isfinite(value) and value >= 0):
            raise TraceError(f"script {name}, line {line[0]}: {field} = {value:g} is not a number of steps from 0 on.")
    return TraceEvent(
        at_s=event.at_step, change=event.change, node=event.node, zone=event.zone, notice_s=event.notice_steps
    )
