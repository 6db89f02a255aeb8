"""The events of a trace as a run meets them, in order. Pure data."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from planaria.simulate.episode.subject import Disturbance
from planaria.simulate.traces.trace import Change, DeviceChange, DeviceEvent, Trace, TraceEvent

Happening = tuple[float, int, int, int]
"""An event: time in seconds, a `Disturbance`, a node's number in the trace, and which device of it; 0 where it is of
all of the node."""

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
        of_devices: list[Happening] = []
        coming: dict[tuple[int, int], Happening] = {}
        for event in itertools.dropwhile(_is_initial, trace.all_events):
            at_s = event.at_s
            if isinstance(event, DeviceEvent):
                number = numbers[event.node]
                back = coming.pop((number, event.device), None)
                if event.change is DeviceChange.JOINED:
                    back = (at_s + start_s, int(Disturbance.DEVICE_CAME), number, event.device)
                    coming[number, event.device] = back
                    of_devices.append(back)
                elif back is not None and back[0] >= at_s:
                    of_devices.remove(back)  # it goes again before it has joined
                else:
                    gone_s = max(at_s, joined[number])
                    of_devices.append((gone_s, int(Disturbance.DEVICE_LOST), number, event.device))
                continue
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
                happenings.append((noticed_s, Disturbance.NOTICED, number, 0))
            happenings.append((at_s, Disturbance.LOST, number, 0))
        for number, (came, went, _) in enumerate(stays):
            if came > 0 and joined[number] < went:
                happenings.append((joined[number], Disturbance.CAME, number, 0))
        happenings += [happening for happening in of_devices if happening[0] < stays[happening[2]][1]]
        happenings.sort()
        return cls(
            name=trace.name,
            horizon_s=trace.horizon_s,
            happenings=happenings,
            num_initial=len(first),
            stays=stays,
        )


def _is_initial(event: TraceEvent | DeviceEvent) -> bool:
    """Returns whether an event is of a node as the trace begins."""
    return event.at_s == 0 and isinstance(event, TraceEvent)
