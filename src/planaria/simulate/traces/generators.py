"""Traces that are made up: a process by which nodes go, and one by which others come in their place.

Each is a function of its settings and a seed. The rates are those of nodes that are there: with half of them gone, half
as many go in an hour.
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass

from planaria.simulate.traces.trace import HOUR_S, Change, Trace, TraceError, TraceEvent

DAY_S = 24 * HOUR_S

LEAST_SHAPE = 0.01
"""Least shape of Weibull's distribution; below it, the scale for a mean lifetime is no number any more."""

MOST_EVENTS = 2_000_000
"""Most events of a generated trace; a larger one is a mistake, and takes memory without end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantRate:
    """Failures at a constant rate, in bulks from one zone (Bamboo, section 6.2; bulks: section 3).

    With bulks of one it is a Poisson process: every node lives `1 / hourly` hours on average.

    Attributes:
        hourly: the share of the nodes that goes in an hour; may be above 1.
        mean_bulk: nodes that go together, on average (geometric, at most a zone's); at least 1.
    """

    hourly: float
    mean_bulk: float = 1.0

    def __post_init__(self) -> None:
        _check("hourly", self.hourly, self.hourly >= 0, "a share of the nodes from 0 on")
        _check("mean_bulk", self.mean_bulk, self.mean_bulk >= 1, "at least 1 node")

    @property
    def highest(self) -> float:
        return self.hourly

    def at(self, time_s: float) -> float:
        return self.hourly


@dataclass(frozen=True, slots=True, kw_only=True)
class Diurnal:
    """Failures as ConstantRate on average over a day, and more by day than by night.

    Attributes:
        hourly: the mean share of the nodes that goes in an hour.
        swing: the rate goes from (1 - swing) to (1 + swing) of the mean, as a cosine.
        peak_s: time of the day at which most go; the trace begins at 0.
        mean_bulk: as ConstantRate's.
    """

    hourly: float
    swing: float = 0.8
    peak_s: float = 12 * HOUR_S
    mean_bulk: float = 1.0

    def __post_init__(self) -> None:
        ConstantRate(hourly=self.hourly, mean_bulk=self.mean_bulk)
        _check("swing", self.swing, 0 <= self.swing <= 1, "from 0 to 1")

    @property
    def highest(self) -> float:
        return self.hourly * (1 + self.swing)

    def at(self, time_s: float) -> float:
        return self.hourly * (1 + self.swing * math.cos(2 * math.pi * (time_s - self.peak_s) / DAY_S))


@dataclass(frozen=True, slots=True, kw_only=True)
class Weibull:
    """Failures after Weibull-distributed lifetimes: below shape 1 young nodes go soonest, above it old ones.

    Attributes:
        mean_s: mean seconds that a node lives.
        shape: 1 is the exponential distribution.
    """

    mean_s: float
    shape: float

    def __post_init__(self) -> None:
        _check("mean_s", self.mean_s, self.mean_s > 0, "above 0 s")
        _check("shape", self.shape, self.shape >= LEAST_SHAPE, f"{LEAST_SHAPE:g} or more")

    def draw_s(self, choice: random.Random) -> float:
        return choice.weibullvariate(self.mean_s / math.gamma(1 + 1 / self.shape), self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Monotonic:
    """Failures of one node after every interval; none comes (Oobleck, section 7.2).

    Attributes:
        interval_s: seconds between two losses.
        down_to: nodes that stay.
    """

    interval_s: float
    down_to: int = 0

    def __post_init__(self) -> None:
        _check("interval_s", self.interval_s, self.interval_s > 0, "above 0 s")
        _check("down_to", self.down_to, self.down_to >= 0, "0 or more nodes")


Failures = ConstantRate | Diurnal | Weibull | Monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """The nodes that are there at the beginning, and those that come.

    Attributes:
        nodes: at the beginning, and as many as are wanted all the time.
        zones: names; a node that comes is in any of them.
        arrival_s: mean time (exponential) until another node comes for one that went; None: none comes.
        notice_s: how long before it goes a node is announced to go.
    """

    nodes: int
    zones: tuple[str, ...] = ("",)
    arrival_s: float | None = None
    notice_s: float = 0.0

    def __post_init__(self) -> None:
        _check("nodes", self.nodes, self.nodes >= 1, "at least 1")
        _check("zones", len(self.zones), len(set(self.zones)) == len(self.zones) >= 1, "different names")
        if self.arrival_s is not None:
            _check("arrival_s", self.arrival_s, self.arrival_s >= 0, "0 s or more")
        _check("notice_s", self.notice_s, self.notice_s >= 0, "0 s or more")


def _check(field: str, value: float, holds: bool, wanted: str) -> None:
    if not (math.isfinite(value) and holds):
        raise TraceError(f"{field} = {value:g}: expected {wanted}.")


def generate(failures: Failures, population: Population, horizon_s: float, *, seed: int, name: str) -> Trace:
    """Generates a trace. One seed gives one trace.

    Raises:
        TraceError: `horizon_s` is not a time above 0, or more happens than `MOST_EVENTS`.
    """
    _check("horizon_s", horizon_s, horizon_s > 0, "above 0 s")
    making = _Making(failures, population, random.Random(seed))
    return Trace(name=name, horizon_s=horizon_s, events=tuple(making.run(horizon_s)))


class _Making:
    """A trace in the making."""

    def __init__(self, failures: Failures, population: Population, choice: random.Random) -> None:
        self._failures = failures
        self._rate = failures if isinstance(failures, ConstantRate | Diurnal) else None
        self._highest = 0.0 if self._rate is None else self._rate.highest
        self._lives = failures if isinstance(failures, Weibull) else None
        self._mean_arrival_s = None if isinstance(failures, Monotonic) else population.arrival_s
        self._population = population
        self._choice = choice
        self._there: dict[str, str] = {}
        self._due: list[tuple[float, int, str]] = []
        """Due events: (time, number, the node that goes then); an empty name: one comes."""
        self._number = 0
        self._made = 0
        self._events: list[TraceEvent] = []

    def run(self, horizon_s: float) -> list[TraceEvent]:
        for at in range(self._population.nodes):
            self._add(0.0, self._population.zones[at % len(self._population.zones)])
        now = 0.0
        while True:
            loss_s = self._next_loss_s(now)
            due_s = self._due[0][0] if self._due else math.inf
            now = min(loss_s, due_s)
            if now > horizon_s:
                return self._events
            if len(self._events) >= MOST_EVENTS:
                raise TraceError(
                    f"within {now / HOUR_S:.3g} of {horizon_s / HOUR_S:.3g} hours {MOST_EVENTS:,} nodes came or went. "
                    "Give fewer nodes or hours, or a lower rate."
                )
            if due_s <= loss_s:
                self._carry_out(*heapq.heappop(self._due))
            else:
                self._lose(now)

    def _next_loss_s(self, now: float) -> float:
        """Returns when nodes may go next, by the rate for as many as there are; drawn anew after every event."""
        if self._rate is not None:
            events_per_s = self._highest * len(self._there) / self._rate.mean_bulk / HOUR_S
            return now + self._choice.expovariate(events_per_s) if events_per_s else math.inf
        match self._failures:
            case Monotonic(interval_s=interval_s, down_to=down_to):
                more = len(self._there) > down_to
                return (math.floor(now / interval_s + 1e-9) + 1) * interval_s if more else math.inf
            case _:
                return math.inf

    def _lose(self, now: float) -> None:
        if self._rate is not None:
            if self._choice.random() * self._highest < self._rate.at(now):
                for node in self._bulk(self._rate.mean_bulk):
                    self._remove(now, node)
            return
        assert isinstance(self._failures, Monotonic)  # lifetimes are drawn when nodes come
        self._remove(now, self._choice.choice(list(self._there)))

    def _bulk(self, mean: float) -> list[str]:
        """Returns nodes of one zone, which is drawn in proportion to its nodes."""
        there = list(self._there)
        zone = self._there[self._choice.choice(there)]
        size = 1
        while self._choice.random() < 1 - 1 / mean:
            size += 1
        near = there if len(self._population.zones) == 1 else [node for node in there if self._there[node] == zone]
        return self._choice.sample(near, min(size, len(near))) if size > 1 else [self._choice.choice(near)]

    def _carry_out(self, at_s: float, _: int, node: str) -> None:
        if node:
            self._remove(at_s, node)
        else:
            self._add(at_s, self._choice.choice(self._population.zones))

    def _add(self, at_s: float, zone: str) -> None:
        self._made += 1
        node = f"node{self._made}"
        self._there[node] = zone
        self._events.append(TraceEvent(at_s=at_s, change=Change.ADD, node=node, zone=zone))
        if self._lives is not None:
            self._later(at_s + self._lives.draw_s(self._choice), node)

    def _remove(self, at_s: float, node: str) -> None:
        zone = self._there.pop(node)
        notice_s = min(self._population.notice_s, at_s)
        self._events.append(TraceEvent(at_s=at_s, change=Change.REMOVE, node=node, zone=zone, notice_s=notice_s))
        if self._mean_arrival_s is not None:
            delay_s = self._choice.expovariate(1 / self._mean_arrival_s) if self._mean_arrival_s else 0.0
            self._later(at_s + delay_s, "")

    def _later(self, at_s: float, node: str) -> None:
        self._number += 1
        heapq.heappush(self._due, (at_s, self._number, node))
