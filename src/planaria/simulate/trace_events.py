"""The events of a trace as a run meets them, in order. Pure data."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from planaria.simulate.episode.subject import Disturbance
from planaria.simulate.traces.trace import Change, Trace

Happening = tuple[float, int, int]
"""An event: time in seconds, a `Disturbance`, a node's number in the trace."""

_NEVER = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEvents:
    """A trace, as a run meets it.

    Attributes:
        name: the trace's name.
        horizon_s: the trace's length in seconds.
        happenings: in the order of time; nodes come when their workers have joined.
        num_initial: nodes 0, 1, ... that are there when it begins.
        stays: for each node, when it came and went in the trace, and its zone; a node that comes back is another one.
    """

    name: str
    horizon_s: float
    happenings: Sequence[Happening]
    num_initial: int
    stays: Sequence[tuple[float, float, str]]

    @classmethod
    def of(cls, trace: Trace, start_s: float) -> TraceEvents:
        """Returns the events of a trace in which nodes take so long to start."""
        first = trace.at_first
        numbers = {node: number for number, node in enumerate(first)}
        stays = [(0.0, _NEVER, zone) for zone in first.values()]
        joined = [0.0] * len(stays)
        happenings: list[Happening] = []
        for event in itertools.dropwhile(lambda event: event.at_s == 0, trace.events):
            at_s = event.at_s
            if event.change is Change.ADD:
                numbers[event.node] = len(stays)
                joined.append(at_s + start_s)
                stays.append((at_s, _NEVER, event.zone))
                continue
            number = numbers[event.node]
            stays[number] = (stays[number][0], at_s, stays[number][2])
            if joined[number] >= at_s:
                continue
            if event.notice_s > 0:
                noticed_s = max(joined[number], at_s - event.notice_s)
                happenings.append((noticed_s, Disturbance.NOTICED, number))
            happenings.append((at_s, Disturbance.LOST, number))
        for number, (came, went, _) in enumerate(stays):
            if came > 0 and joined[number] < went:
                happenings.append((joined[number], Disturbance.CAME, number))
        happenings.sort()
        return cls(
            name=trace.name,
            horizon_s=trace.horizon_s,
            happenings=happenings,
            num_initial=len(first),
            stays=stays,
        )
