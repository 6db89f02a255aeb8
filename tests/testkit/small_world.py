"""Small worlds, enumerated: every placement of two faults on every delivery: `python -m tests.testkit.small_world`.

A world is a job of 2 layers and 2 microbatches on 3 nodes, under one policy. A run of it without faults has so many
deliveries: messages that arrive, at workers or the coordinator. At each of them one of these may happen: its receiver
dies; its sender dies, and what it has sent still arrives, or none of it does; it arrives damaged (between workers). A
coordinator that dies begins again. Each run with one fault has deliveries of its own, and at each of them that come
after the fault, the same may happen again. Every promise is checked after every event, as in random schedules.

The reduction: a place may die at any moment, and here it dies only at deliveries to it or from it. Between two of
those it hears nothing and nothing that it said is heard, so its death there and its death at the second of them leave
everybody with the same history; only the time at which the death is found out differs.

What is not covered: of messages that are under way at the same time, one order of arrival is tried, that of their
times; `--orders` tries others, by random times. What a place has heard, and in which order, is its history; a state is
the history of all places. States that two runs share are counted once.
"""

from __future__ import annotations

import enum
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click

from planaria.job.registry import PolicyName
from planaria.plan.plan import NodeId, ScheduleKind
from tests.testkit.cluster.cluster import Cluster
from tests.testkit.cluster.network import COORDINATOR, Way
from tests.testkit.schedules.faults import Fault, FaultKind
from tests.testkit.schedules.schedule import Schedule
from tests.testkit.schedules.search import first_line
from tests.testkit.schedules.setup import Setup
from tests.testkit.schedules.weather import Weather

POLICIES = (PolicyName.TEMPLATES, PolicyName.REROUTE, PolicyName.REDUNDANCY)

BEGINS_AGAIN_S = 1e-3
"""Virtual seconds until a coordinator that died begins again."""


class Blow(enum.Enum):
    """What happens at a delivery."""

    RECEIVER_DIES = "its receiver dies"
    SENDER_DIES = "its sender dies, and all that it sent arrives"
    SENDER_DIES_FIRST = "its sender dies, and nothing that it sent arrives"
    DAMAGE = "it arrives damaged"


@dataclass(frozen=True, slots=True)
class Placement:
    """A fault at one delivery, counted from the first."""

    delivery: int
    blow: Blow


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a world.

    Attributes:
        deliveries: (sender, receiver) of each, in order.
        error: the promise that it broke; None: none.
        states: after each delivery.
    """

    deliveries: Sequence[tuple[int, int]]
    error: str | None
    states: Sequence[int]


def world(policy: PolicyName, order: int = 0) -> Schedule:
    """Returns the world of one policy; `order` 0: times are as the profile says; else they are drawn from it."""
    needs_two = policy is not PolicyName.TEMPLATES
    setup = Setup(
        num_layers=2,
        is_tied=False,
        is_large=False,
        num_nodes=3,
        devices_per_node=1,
        fault_tolerance=0 if needs_two else 1,
        min_nodes=2 if needs_two else 1,
        num_microbatches=2,
        steps=2,
        checkpoint_every=1,
        order=ScheduleKind.ONE_F_ONE_B,
        waits=False,
        policy=policy,
    )
    return Schedule(seed=order, setup=setup, weather=Weather(is_exact=not order), faults=())


class SmallCluster(Cluster):
    """A cluster in which faults are placed on deliveries."""

    def __init__(self, schedule: Schedule, placements: Sequence[Placement]) -> None:
        super().__init__(schedule)
        self.may_fail.add("no replica")
        self.deliveries: list[tuple[int, int]] = []
        self.states: list[int] = []
        self._blows = {placement.delivery: placement.blow for placement in placements}
        self._heard: dict[int, int] = {}
        self.network.arrives = self._arrives
        self.network.lost_at_cut = lambda number: 0

    def _arrives(self, way: Way) -> None:
        number, (source, target) = len(self.deliveries), (way.source, way.target)
        self.deliveries.append((source, target))
        blow = self._blows.get(number)
        known = self._heard.get(source, 0)
        self._heard[target] = hash((self._heard.get(target, 0), source, known, 0 if blow is None else 1 + _at(blow)))
        self.states.append(hash(tuple(sorted(self._heard.items()))))
        match blow:
            case Blow.RECEIVER_DIES:
                self._dies(target)
            case Blow.SENDER_DIES:
                self._dies(source)
            case Blow.SENDER_DIES_FIRST:
                self.network.lost_at_cut = lambda number: number
                self._dies(source)
                self.network.lost_at_cut = lambda number: 0
            case Blow.DAMAGE:
                for worker in self.workers_of(source):
                    worker.transport.damages[""] = 1
            case None:
                pass

    def _dies(self, place: int) -> None:
        if place == COORDINATOR:
            self.injector.strike(Fault(kind=FaultKind.CRASH, for_s=BEGINS_AGAIN_S))
        else:
            self.kill(NodeId(place))


def _at(blow: Blow) -> int:
    return list(Blow).index(blow)


def run(schedule: Schedule, placements: Sequence[Placement] = ()) -> Run:
    cluster = SmallCluster(schedule, placements)
    error: str | None = None
    try:
        cluster.run()
    except Exception as failed:
        error = first_line(failed)
    return Run(cluster.deliveries, error, cluster.states)


def placements(deliveries: Sequence[tuple[int, int]], first: int = 0) -> Iterator[Placement]:
    """Yields every fault at every delivery from `first` on."""
    for number, (source, target) in enumerate(deliveries):
        if number >= first:
            for blow in Blow:
                if blow is not Blow.DAMAGE or COORDINATOR not in (source, target):
                    yield Placement(number, blow)


@dataclass(slots=True)
class Tally:
    """What was tried of the worlds."""

    num_runs: int
    states: set[int]
    failed: list[tuple[str, Sequence[Placement], str]]

    def take(self, name: str, placed: Sequence[Placement], found: Run) -> Run:
        self.num_runs += 1
        self.states.update(hash((name, state)) for state in found.states)
        if found.error is not None:
            self.failed.append((name, placed, found.error))
        return found


def enumerate_world(which: Schedule, tally: Tally, *, most: int = 2, stride: int = 1, at: int = 0) -> None:
    """Runs every placement of at most two faults; with a stride, of the pairs every n-th from `at` on."""
    name, number = f"{which.setup.policy.value}, order {which.seed}", 0
    base = tally.take(name, (), run(which))
    for first in placements(base.deliveries):
        once = tally.take(name, (first,), run(which, (first,)))
        for second in placements(once.deliveries, first.delivery + 1) if most > 1 else ():
            number += 1
            if number % stride == at:
                tally.take(name, (first, second), run(which, (first, second)))


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--faults", type=click.IntRange(1, 2), default=2, show_default=True, help="Most faults of a run.")
@click.option(
    "--orders", type=click.IntRange(1), default=1, show_default=True, help="Orders of messages of each world."
)
@click.option("--stride", type=click.IntRange(1), default=1, show_default=True, help="Of pairs, every n-th is tried.")
def small_world(faults: int, orders: int, stride: int) -> None:
    """Enumerate small worlds: every placement of two faults on every delivery.

    Exit code 1 when a promise was broken.
    """
    began, tally = time.monotonic(), Tally(0, set(), [])
    for policy in POLICIES:
        for order in range(orders):
            before = tally.num_runs
            enumerate_world(world(policy, order), tally, most=faults, stride=stride)
            click.echo(f"{policy.value}, order {order}: {tally.num_runs - before} runs")
    for name, placed, error in tally.failed:
        where = "; ".join(f"delivery {one.delivery}: {one.blow.value}" for one in placed)
        click.echo(f"FAILED {name}, {where}: {error}")
    click.echo(
        f"{tally.num_runs} runs, {len(tally.states)} states, {len(tally.failed)} failed; "
        f"{time.monotonic() - began:.1f} s"
    )
    sys.exit(1 if tally.failed else 0)


if __name__ == "__main__":
    small_world(prog_name="python -m tests.testkit.small_world")
