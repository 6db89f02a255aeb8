"""Spot traces like those of the papers: made up with their rates, or the recorded ones where a folder has them.

The recorded traces are in Bamboo's repository (UCLASystem/bamboo, MIT): `p3-trace.csv`, `a100x1-east1b.txt`.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from planaria.simulate.traces.formats import read_trace
from planaria.simulate.traces.generators import ConstantRate, Population, generate
from planaria.simulate.traces.trace import HOUR_S, Change, Trace, TraceEvent, summarise

P3_FILE = "p3-trace.csv"
ZONES = ("a", "b", "c")

P3_BULK = 2.1
P3_FILLED = 0.75
"""Of the recorded P3 trace: nodes that go together, and the mean number of nodes over the largest (`planaria trace
describe`). As many, 1.9, come together."""


def with_interval(nodes: int, interval_s: float, hours: float, name: str, *, seed: int = 1) -> Trace:
    """A preemption of `P3_BULK` nodes after each interval on average, three quarters of the nodes there on average; new
    ones come two by two."""
    hourly = P3_BULK * HOUR_S / interval_s / (P3_FILLED * nodes)
    population = Population(nodes=nodes, zones=ZONES, arrival_s=HOUR_S * (1 / P3_FILLED - 1) / hourly)
    failures = ConstantRate(hourly=hourly, mean_bulk=P3_BULK)
    return two_by_two(generate(failures, population, hours * HOUR_S, seed=seed, name=name))


def two_by_two(trace: Trace) -> Trace:
    """Of nodes that come after the beginning, every first waits for the next one, so that both come together; a node
    that goes before that comes alone."""
    later_s: dict[int, float] = {}
    first: tuple[int, str] | None = None
    for at, event in enumerate(trace.events):
        if first is not None and event.change is Change.REMOVE and event.node == first[1]:
            first = None
        elif event.change is Change.ADD and event.at_s > 0:
            if first is not None:
                later_s[first[0]] = event.at_s
            first = (at, event.node) if first is None else None
    events = [msgspec.structs.replace(event, at_s=later_s.get(at, event.at_s)) for at, event in enumerate(trace.events)]
    return msgspec.structs.replace(trace, events=tuple(sorted(events, key=lambda event: event.at_s)))


def recorded_p3(folder: Path | None) -> Trace | None:
    """None where there is none."""
    if folder is None or not (folder / P3_FILE).exists():
        return None
    return read_trace((folder / P3_FILE).read_text(), "EC2 P3, recorded").trace


def at_most(trace: Trace, nodes: int) -> Trace:
    """The same without nodes that come when as many are there already."""
    there: set[str] = set()
    events: list[TraceEvent] = []
    for event in trace.events:
        if event.change is Change.ADD and len(there) < nodes:
            there.add(event.node)
            events.append(event)
        elif event.change is Change.REMOVE and event.node in there:
            there.remove(event.node)
            events.append(event)
    return Trace(name=trace.name, horizon_s=trace.horizon_s, events=tuple(events))


def described(trace: Trace) -> str:
    """One line for people."""
    summary = summarise(trace)
    interval = "" if summary.interval_s is None else f", a preemption every {summary.interval_s / 60:.1f} min"
    return (
        f"{trace.name}: {summary.mean_nodes:.1f} nodes on average{interval}, {summary.hourly_rate:.0%} of them an hour"
    )
