"""Repairs of traces: contradictions are removed, and reported with their line. Pure; it knows no format."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from planaria.simulate.traces.trace import Change, DeviceChange, DeviceEvent, TraceError, TraceEvent

Numbered = tuple[int, TraceEvent]
"""An event with the line that says it."""


@dataclass(slots=True)
class Lines:
    """The lines of one text, as it is read.

    Attributes:
        name: of the text, for messages.
        what: what the text is, for messages.
        unit: what it is counted in.
        repairs: what was repaired or assumed so far, one sentence each.
    """

    name: str
    what: str = "trace"
    unit: str = "line"
    repairs: list[str] = field(default_factory=list)

    def refuse(self, line: int, text: str) -> TraceError:
        return TraceError(f"{self.what} {self.name}, {self.unit} {line}: {text}")

    def repaired(self, line: int, text: str) -> None:
        self.repairs.append(f"{self.unit} {line}: {text}")

    def ends(self, line: int, horizon: float, events: Sequence[Numbered | tuple[int, DeviceEvent]], field: str) -> None:
        """Reports where the text goes on after the end that it gives in that line."""
        if not events:
            return
        last, event = max(events, key=lambda numbered: numbered[1].at_s)
        if event.at_s > horizon:
            self.repaired(line, f"{field} = {horizon:g} is before line {last}, at {event.at_s:g}; it ends there")


_JUMP = 0.5
"""Share of the nodes above which a loss or gain at one line is reported."""


def drawn(series: Sequence[tuple[int, float, int]], lines: Lines, seed: int) -> Iterator[Numbered]:
    """Yields nodes that come and go so that their number is as counted. Who goes is drawn from those that are there."""
    choice = random.Random(seed)
    there: list[str] = []
    made = 0
    for row, (line, at_s, count) in enumerate(series):
        change = count - len(there)
        if row and abs(change) > max(2, _JUMP * max(len(there), count)):
            lines.repaired(line, f"from {len(there)} to {count} nodes at once; taken as it stands")
        for _ in range(change):
            made += 1
            there.append(f"node{made}")
            yield line, TraceEvent(at_s=at_s, change=Change.ADD, node=there[-1])
        for _ in range(-change):
            node = there.pop(choice.randrange(len(there)))
            yield line, TraceEvent(at_s=at_s, change=Change.REMOVE, node=node)


def in_order(events: list[Numbered], lines: Lines) -> list[Numbered]:
    for (before, earlier), (after, later) in pairwise(events):
        if later.at_s < earlier.at_s:
            lines.repaired(after, f"it is earlier than line {before}; the events were sorted by time")
    return sorted(events, key=lambda numbered: numbered[1].at_s)


def consistent(events: Iterable[Numbered], lines: Lines) -> Iterator[TraceEvent]:
    """Yields the events that do not contradict those before."""
    there: set[str] = set()
    for line, event in events:
        if event.change is Change.ADD and event.node in there:
            lines.repaired(line, f"{event.node} is added, and is there already; left out")
        elif event.change is Change.REMOVE and event.node not in there:
            lines.repaired(line, f"{event.node} is removed, and is not there; left out")
        else:
            (there.add if event.change is Change.ADD else there.remove)(event.node)
            yield event


def consistent_devices(
    events: Sequence[TraceEvent], devices: Iterable[tuple[int, DeviceEvent]], lines: Lines
) -> Iterator[DeviceEvent]:
    """Yields the events of devices, in order, that do not contradict those before, nor these of nodes."""
    left = deque(events)
    lost: dict[str, set[int]] = {}
    for line, event in sorted(devices, key=lambda numbered: numbered[1].at_s):
        while left and left[0].at_s <= event.at_s:
            node = left.popleft()
            lost.pop(node.node, None)
            if node.change is Change.ADD:
                lost[node.node] = set()
        what, is_loss = f"device {event.device} of {event.node}", event.change is DeviceChange.LOST
        if event.node not in lost:
            lines.repaired(line, f"{what}, and that node is not there; left out")
        elif (event.device in lost[event.node]) is is_loss:
            lines.repaired(line, f"{what} is {'lost already' if is_loss else 'there already'}; left out")
        else:
            lost[event.node] ^= {event.device}
            yield event
