"""A trace: which nodes were there when, and what can be said of it. Pure data; it knows no file and no format."""

from __future__ import annotations

import enum
import itertools
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from planaria.job.errors import UserError

HOUR_S = 3600.0

ROUNDING = 1e-12
"""Rounding of a part's end: hours turned into seconds, and a length that is the rest of the whole."""


class TraceError(UserError):
    """A trace that cannot be used, with the line at fault."""


class Change(enum.StrEnum):
    ADD = "add"
    REMOVE = "remove"


class TraceEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """An event at which a node comes or goes.

    Attributes:
        at_s: seconds since the trace's beginning.
        change: what happens.
        node: its name; a node that comes back has the same one.
        zone: where it is; "": not known.
        notice_s: of a removal, how long before it is announced; 0: not at all.
    """

    at_s: float
    change: Change
    node: str
    zone: str = ""
    notice_s: float = 0.0


class DeviceChange(enum.StrEnum):
    LOST = "device_lost"
    JOINED = "device_joined"


class DeviceEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """An event at which one device of a node that stays is lost, or is started again.

    Attributes:
        at_s: seconds since the trace's beginning.
        change: what happens.
        node: the node's name.
        device: of the node, from 0.
    """

    at_s: float
    change: DeviceChange
    node: str
    device: int


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """The availability of a cluster's nodes over time, and of devices of nodes that stay.

    Attributes:
        name: for people.
        horizon_s: seconds from its beginning to its end, which is after the last event or with it.
        events: in the order of time; a node is only added when it is not there, and only removed when it is.
        device_events: in the order of time; a device is only lost while its node is there and it is, and only started
            again when it is lost. A node that comes has all of its devices.
    """

    name: str
    horizon_s: float
    events: tuple[TraceEvent, ...]
    device_events: tuple[DeviceEvent, ...] = ()

    def __post_init__(self) -> None:
        """Raises TraceError where events contradict each other; see `planaria.simulate.traces.repairs`."""
        there: set[str] = set()
        last_s = 0.0
        end_s, comes = self.horizon_s, Change.ADD
        for at, event in enumerate(self.events, 1):
            at_s, node = event.at_s, event.node
            if not last_s <= at_s <= end_s:
                where = self._where(at, event)
                raise TraceError(f"{where}: its time is not between {last_s:g} s and the end at {end_s:g} s.")
            if (node in there) is (event.change is comes):
                where = self._where(at, event)
                raise TraceError(f"{where}: the node is {'already' if node in there else 'not'} there.")
            if event.change is comes:
                there.add(node)
            else:
                there.remove(node)
            last_s = at_s
        if self.device_events:
            self._check_devices()

    @property
    def all_events(self) -> list[TraceEvent | DeviceEvent]:
        """The events of nodes and of devices in the order of time; of one time those of nodes come first."""
        both: list[TraceEvent | DeviceEvent] = [*self.events, *self.device_events]
        return sorted(both, key=lambda event: event.at_s)

    def _check_devices(self) -> None:
        lost: dict[str, set[int]] = {}
        if any(later.at_s < earlier.at_s for earlier, later in itertools.pairwise(self.device_events)):
            raise TraceError(f"trace {self.name}: its device_events are not in the order of time.")
        for event in self.all_events:
            if isinstance(event, TraceEvent):
                lost.pop(event.node, None)
                if event.change is Change.ADD:
                    lost[event.node] = set()
                continue
            where = f"trace {self.name} ({event.change} {event.node}:{event.device} at {event.at_s:g} s)"
            if not 0 <= event.at_s <= self.horizon_s:
                raise TraceError(f"{where}: its time is not between 0 s and the end at {self.horizon_s:g} s.")
            if event.node not in lost:
                raise TraceError(f"{where}: the node is not there.")
            if (event.device in lost[event.node]) is (event.change is DeviceChange.LOST):
                is_lost = event.change is DeviceChange.LOST
                raise TraceError(f"{where}: the device is {'lost already' if is_lost else 'there'}.")
            lost[event.node] ^= {event.device}

    def _where(self, at: int, event: TraceEvent) -> str:
        return f"trace {self.name}, event {at} ({event.change} {event.node} at {event.at_s:g} s)"

    @property
    def initial(self) -> tuple[str, ...]:
        """The nodes that are there when the trace begins."""
        return tuple(self.at_first)

    @property
    def at_first(self) -> dict[str, str]:
        """The zones by node. A node that comes and goes in the very moment of the beginning is none of them."""
        there: dict[str, str] = {}
        for event in itertools.takewhile(lambda event: event.at_s == 0, self.events):
            if event.change is Change.ADD:
                there[event.node] = event.zone
            else:
                del there[event.node]
        return there

    def counts(self) -> Iterator[tuple[float, int]]:
        """Yields (time in seconds, nodes from then on), once for each time at which something happens."""
        count = 0
        for at, event in enumerate(self.events):
            count += 1 if event.change is Change.ADD else -1
            if at + 1 == len(self.events) or self.events[at + 1].at_s != event.at_s:
                yield event.at_s, count

    def window(self, start_s: float, length_s: float) -> Trace:
        """Returns a part of the trace, with its own beginning: the nodes that are there at `start_s` are added at 0.

        Raises:
            TraceError: the part is not within the trace, or no node is there.
        """
        end_s = start_s + length_s
        if abs(end_s - self.horizon_s) <= self.horizon_s * ROUNDING:
            end_s = self.horizon_s
        if start_s < 0 or length_s <= 0 or end_s > self.horizon_s:
            raise TraceError(
                f"trace {self.name}: {length_s:g} s from {start_s:g} s on are not within its {self.horizon_s:g} s."
            )
        there: dict[str, str] = {}
        events: list[TraceEvent] = []
        for event in self.events:
            if event.at_s <= start_s:
                if event.change is Change.ADD:
                    there[event.node] = event.zone
                else:
                    del there[event.node]
            elif event.at_s <= end_s:
                events.append(msgspec.structs.replace(event, at_s=min(event.at_s - start_s, length_s)))
        first = [TraceEvent(at_s=0.0, change=Change.ADD, node=node, zone=zone) for node, zone in there.items()]
        if not first and not events:
            raise TraceError(
                f"trace {self.name}: no node is there in the {length_s:g} s from {start_s:g} s on. Take another part."
            )
        return Trace(
            name=self.name,
            horizon_s=length_s,
            events=(*first, *events),
            device_events=tuple(self._devices_from(start_s, length_s)),
        )

    def _devices_from(self, start_s: float, length_s: float) -> Iterator[DeviceEvent]:
        """Yields the device events of a part of the trace: what is lost when it begins is lost at its beginning."""
        lost: dict[tuple[str, int], None] = {}
        for event in self.all_events:
            if event.at_s > start_s:
                break
            if isinstance(event, TraceEvent):
                lost = {one: None for one in lost if one[0] != event.node}
            elif event.change is DeviceChange.LOST:
                lost[event.node, event.device] = None
            else:
                del lost[event.node, event.device]
        for node, device in lost:
            yield DeviceEvent(at_s=0.0, change=DeviceChange.LOST, node=node, device=device)
        for event in self.device_events:
            if start_s < event.at_s <= start_s + length_s * (1 + ROUNDING):
                yield msgspec.structs.replace(event, at_s=min(event.at_s - start_s, length_s))

    def compressed(self, factor: float) -> Trace:
        """Returns the trace `factor` times as fast; notices too."""
        events = (
            msgspec.structs.replace(event, at_s=event.at_s / factor, notice_s=event.notice_s / factor)
            for event in self.events
        )
        devices = (msgspec.structs.replace(event, at_s=event.at_s / factor) for event in self.device_events)
        return msgspec.structs.replace(
            self, horizon_s=self.horizon_s / factor, events=tuple(events), device_events=tuple(devices)
        )


class TraceSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a trace. Times in seconds; None where nothing of the kind happens.

    Attributes:
        horizon_s: the trace's length in seconds.
        initial_nodes: there at its beginning.
        fewest_nodes, mean_nodes, most_nodes: at any time; the mean is over time.
        num_added: nodes that came after the beginning.
        num_removed: nodes that went.
        num_removals: times at which any went.
        mean_bulk: nodes that went at one time, on average.
        largest_bulk: the most that went at one time.
        interval_s: mean time between two times at which any went.
        hourly_rate: of the nodes that are there, the share that goes in an hour.
        lifetime_s: median time from a node's coming to its going, of those that went.
        zones: nodes that were ever there, by zone.
        one_zone_share: of the times at which several nodes went, the share at which all were of one zone.
        with_notice: of the nodes that went, how many were announced.
        devices_lost: losses of devices whose nodes stayed.
    """

    horizon_s: float
    initial_nodes: int
    fewest_nodes: int
    mean_nodes: float
    most_nodes: int
    num_added: int
    num_removed: int
    num_removals: int
    mean_bulk: float | None
    largest_bulk: int
    interval_s: float | None
    hourly_rate: float
    lifetime_s: float | None
    zones: dict[str, int]
    one_zone_share: float | None
    with_notice: int
    devices_lost: int = 0


def summarise(trace: Trace) -> TraceSummary:
    """Returns the figures of a trace."""
    counts = list(trace.counts())
    node_s, fewest, most = _over_time(counts, trace.horizon_s)
    removed = [event for event in trace.events if event.change is Change.REMOVE]
    bulks: dict[float, list[TraceEvent]] = {}
    for event in removed:
        bulks.setdefault(event.at_s, []).append(event)
    together = [bulk for bulk in bulks.values() if len(bulk) > 1 and all(event.zone for event in bulk)]
    times = sorted(bulks)
    zone_of = {event.node: event.zone for event in trace.events if event.change is Change.ADD}
    lifetimes = list(_lifetimes(trace.events))
    return TraceSummary(
        horizon_s=trace.horizon_s,
        initial_nodes=len(trace.initial),
        fewest_nodes=fewest,
        mean_nodes=node_s / trace.horizon_s,
        most_nodes=most,
        num_added=sum(event.change is Change.ADD for event in trace.events) - len(trace.initial),
        num_removed=len(removed),
        num_removals=len(bulks),
        mean_bulk=len(removed) / len(bulks) if bulks else None,
        largest_bulk=max(map(len, bulks.values()), default=0),
        interval_s=(times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None,
        hourly_rate=len(removed) / (node_s / HOUR_S) if node_s else 0.0,
        lifetime_s=statistics.median(lifetimes) if lifetimes else None,
        zones=dict(sorted(Counter(zone for zone in zone_of.values() if zone).items())),
        one_zone_share=sum(len({e.zone for e in b}) == 1 for b in together) / len(together) if together else None,
        with_notice=sum(event.notice_s > 0 for event in removed),
        devices_lost=sum(event.change is DeviceChange.LOST for event in trace.device_events),
    )


def _over_time(counts: Sequence[tuple[float, int]], horizon_s: float) -> tuple[float, int, int]:
    """Returns node-seconds, and the fewest and most nodes that were there for any time."""
    starts = [(0.0, 0), *counts]
    ends = [*(at_s for at_s, _ in counts), horizon_s]
    lasting = [(end - start, count) for (start, count), end in zip(starts, ends, strict=True) if end > start]
    return sum(s * n for s, n in lasting), min(n for _, n in lasting), max(n for _, n in lasting)


def _lifetimes(events: Sequence[TraceEvent]) -> Iterator[float]:
    came: dict[str, float] = {}
    for event in events:
        if event.change is Change.ADD:
            came[event.node] = event.at_s
        else:
            yield event.at_s - came.pop(event.node)
