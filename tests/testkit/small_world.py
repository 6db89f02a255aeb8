"""Small worlds, enumerated: faults on every delivery, messages in other orders: `python -m tests.testkit.small_world`.

A world is a job of 2 layers and 2 microbatches on 3 nodes, under one policy. A run of it without faults has so many
deliveries: messages that arrive, at workers or the coordinator. At each of them one of these may happen: its receiver
dies; its sender dies, and what it has sent still arrives, or none of it does; it arrives damaged (between workers). A
coordinator that dies begins again. Each run with one fault has deliveries of its own, and at each of them that come
after the fault, the same may happen again. Every promise is checked after every event, as in random schedules.

The reduction: a place may die at any moment, and here it dies only at deliveries to it or from it. Between two of
those it hears nothing and nothing that it said is heard, so its death there and its death at the second of them leave
everybody with the same history; only the time at which the death is found out differs.

Messages on one connection arrive in order; those on several may overtake each other. An overtaking: a message is kept
until the next one on another connection has reached the same place, where it may be kept once more. What nothing
overtakes while it is kept was concurrent with nothing: that run is counted apart, and nothing follows from it.

The reduction of orders: only what arrives at one place is put in another order, and the places take turns as times
say. Two arrivals at different places commute: neither place knows of the other's, and what either sends goes on
connections of its own. So whatever the turns, each place has one and the same history. What a place has heard, and in
which order, is its history; a state is the history of all places, with what is kept. What was tried in a state is not
tried in it again, however it is reached.

At the coordinator there are too many histories, and most of them leave nothing behind: of three votes it does not know
later which came first, unless a dict does. There a state is what the coordinator holds (its machine, who is admitted,
who is doubted), what each worker has heard of whom, and what is under way on each control connection. Dicts are
compared in their order, and times are left out: a message is kept for at most `KEPT_S`, in which nothing runs out. Nor
are the policy's answers and the log of transitions looked at: the first are functions of what is asked, the second is
read by people. Two runs that come to one state go on alike, so what was tried in it is not tried again.

What is tried is `PARTS`: two faults, the messages as times order them; one fault with any one overtaking; no fault with
any few. In a job of one step every order is tried at each worker, and every order at the coordinator, in each of these
the others as times order them.

What is not covered: two faults beside overtakings, one fault beside more than one; orders at two places at once, but
for few overtakings; moments at which a worker looks at what has arrived, other than those that times make; jobs of more
nodes, layers and steps.
"""

from __future__ import annotations

import enum
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial

import click
import msgspec

from planaria.job.registry import PolicyName
from planaria.plan.plan import NodeId, Plan, ScheduleKind
from tests.testkit.cluster.clock import Action
from tests.testkit.cluster.cluster import Cluster
from tests.testkit.cluster.network import COORDINATOR, Way
from tests.testkit.schedules.faults import Fault, FaultKind
from tests.testkit.schedules.schedule import Schedule
from tests.testkit.schedules.search import first_line
from tests.testkit.schedules.setup import Setup
from tests.testkit.schedules.weather import Weather
from tests.testkit.server.server import Connection

POLICIES = (PolicyName.TEMPLATES, PolicyName.REROUTE, PolicyName.REDUNDANCY)

PARTS = ((2, 0, 2), (1, 1, 1), (0, 3, 1), (0, 2, 2))
"""(most faults, most overtakings, steps of the job) of runs."""

BEGINS_AGAIN_S = 1e-3
"""Virtual seconds until a coordinator that died begins again."""

NODES = 3

KEPT_S = 0.05
"""Virtual seconds for which a message is kept at most: longer than a worker computes, shorter than silence counts."""


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
        choices: the state in which each arrival was let in or kept, and where.
        is_futile: a message was kept, and nothing overtook it.
    """

    deliveries: Sequence[tuple[int, int]]
    error: str | None
    states: Sequence[int]
    choices: Sequence[tuple[int, int]]
    is_futile: bool


def world(policy: PolicyName, steps: int = 2) -> Schedule:
    """Returns the world of one policy; times are as the profile says."""
    needs_two = policy is not PolicyName.TEMPLATES
    setup = Setup(
        num_layers=2,
        is_tied=False,
        is_large=False,
        num_nodes=NODES,
        devices_per_node=1,
        fault_tolerance=0 if needs_two else 1,
        min_nodes=2 if needs_two else 1,
        num_microbatches=2,
        steps=steps,
        checkpoint_every=1,
        order=ScheduleKind.ONE_F_ONE_B,
        waits=False,
        policy=policy,
    )
    return Schedule(seed=0, setup=setup, weather=Weather(is_exact=True), faults=())


class SmallCluster(Cluster):
    """A cluster in which faults are placed on deliveries, and messages overtake others.

    Args:
        schedule: to be run.
        placements: of faults.
        kept: arrivals that are kept, counted from the first; those that are tried again count again.
    """

    def __init__(self, schedule: Schedule, placements: Sequence[Placement], kept: Collection[int] = ()) -> None:
        super().__init__(schedule)
        self.choices: list[tuple[int, int]] = []
        self.is_futile = False
        self._kept = frozenset(kept)
        self._waiting: dict[int, list[Way]] = {}
        self._since: dict[Way, int] = {}
        self.network.postpones = self._postpones
        self.may_fail.add("no replica")
        self.deliveries: list[tuple[int, int]] = []
        self.states: list[int] = []
        self._blows = {placement.delivery: placement.blow for placement in placements}
        self._heard: dict[int, int] = {}
        self.network.arrives = self._arrives
        self.network.lost_at_cut = lambda number: 0

    def _state(self, place: int) -> int:
        """Returns the state in which something is about to arrive at a place."""
        return self.states[-1] if self.states else 0

    def _postpones(self, way: Way) -> bool:
        number, waiting = len(self.choices), [(w.source, w.target) for ways in self._waiting.values() for w in ways]
        state = hash((self._state(way.target), way.source, way.target, *sorted(waiting)))
        self.choices.append((state, way.target))
        if number not in self._kept:
            return False
        self._waiting.setdefault(way.target, []).append(way)
        self.clock.after(KEPT_S, partial(self._nothing_overtook, way, number))
        self._since[way] = number
        return True

    def _nothing_overtook(self, way: Way, number: int) -> None:
        waiting = self._waiting.get(way.target, [])
        if way in waiting and self._since[way] == number:
            self.is_futile = True
            waiting.remove(way)
            way.resume()

    def _arrives(self, way: Way) -> None:
        for waiting in self._waiting.pop(way.target, ()):
            waiting.resume()
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


class MergingCluster(SmallCluster):
    """A small cluster in which orders at the coordinator after which it holds the same are one state."""

    def __init__(self, schedule: Schedule, placements: Sequence[Placement], kept: Collection[int] = ()) -> None:
        super().__init__(schedule, placements, kept)
        self._told: dict[int, int] = {}
        """By place: what it has heard, of whom, in which order."""

    def _state(self, place: int) -> int:
        if place != COORDINATOR:
            return 0
        server = self.server
        ways = [way for connection in server.accepted for way in (connection.up, connection.down)]
        holds = content([server.machine._run, server.admission, server._judge, server._challenge])
        under_way = [(way.source, way.target, [_message(action) for action, _ in way._under_way]) for way in ways]
        self.states.append(hash((holds, content(under_way), content(sorted(self._told.items())))))
        return self.states[-1]

    def _arrives(self, way: Way) -> None:
        num_states = len(self.states)
        if way.target != COORDINATOR:
            known = self._told.get(way.target, 0)
            self._told[way.target] = hash((known, way.source, content(_message(way._under_way[0][0]))))
        super()._arrives(way)
        del self.states[num_states:]  # these are histories


def _message(action: Action) -> object:
    """Returns what arrives with an action: what it is called with, but for who receives it and what it reads then."""
    return [given for given in getattr(action, "args", ()) if isinstance(given, msgspec.Struct | tuple)]


def content(value: object) -> object:
    """Returns what a value holds, to be compared: dicts in their order; nothing of times and policies."""
    return _content(value, {})


def _content(value: object, known: dict[int, object]) -> object:
    if value is None or isinstance(value, int | str | bytes | enum.Enum):
        return value
    if isinstance(value, float):
        return ""
    if id(value) not in known:
        known[id(value)] = None  # it may lead back to itself
        known[id(value)] = _content_of(value, partial(_content, known=known))
    return known[id(value)]


def _content_of(value: object, inner: Callable[[object], object]) -> object:
    if isinstance(value, Mapping):
        return tuple((inner(key), inner(found)) for key, found in value.items())
    if isinstance(value, Set):
        return frozenset(map(inner, value))
    if isinstance(value, Sequence | deque):
        return tuple(map(inner, value))
    if isinstance(value, Connection):
        return value.up.source
    if isinstance(value, Plan):
        return msgspec.json.encode(value)
    kind = type(value)
    if not kind.__module__.startswith(("planaria.protocol", "planaria.plan.plan", "planaria.plan.ledger")):
        return kind.__qualname__
    names = [name for base in kind.__mro__ for name in getattr(base, "__slots__", ())]
    names += getattr(kind, "__struct_fields__", ()) or getattr(value, "__dict__", ())
    return tuple((name, inner(getattr(value, name, None))) for name in names if name not in NOT_HELD)


NOT_HELD = frozenset({"settings", "history", "__dict__", "__weakref__"})
"""Attributes of the coordinator that stay as they are, or that only people read."""


def run(
    schedule: Schedule,
    placements: Sequence[Placement] = (),
    kept: Collection[int] = (),
    make: type[SmallCluster] = SmallCluster,
) -> Run:
    cluster = make(schedule, placements, kept)
    error: str | None = None
    try:
        cluster.run()
    except Exception as failed:
        error = first_line(failed)
    return Run(cluster.deliveries, error, cluster.states, cluster.choices, cluster.is_futile)


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

    num_runs: int = 0
    num_futile: int = 0
    states: set[int] = field(default_factory=set)
    failed: list[tuple[str, Sequence[Placement], Collection[int], str]] = field(default_factory=list)

    def take(self, name: str, found: Run, placed: Sequence[Placement] = (), kept: Collection[int] = ()) -> Run:
        self.num_runs += 1
        self.num_futile += found.is_futile
        self.states.update(hash((name, state)) for state in found.states)
        if found.error is not None:
            self.failed.append((name, placed, kept, found.error))
        return found


def enumerate_world(which: Schedule, tally: Tally, *, most: int = 2, stride: int = 1, at: int = 0) -> None:
    """Runs every placement of at most two faults; with a stride, of the pairs every n-th from `at` on."""
    name, number = name_of(which), 0
    base = tally.take(name, run(which))
    for first in placements(base.deliveries) if most else ():
        once = tally.take(name, run(which, (first,)), (first,))
        for second in placements(once.deliveries, first.delivery + 1) if most > 1 else ():
            number += 1
            if number % stride == at:
                tally.take(name, run(which, (first, second)), (first, second))


def name_of(which: Schedule) -> str:
    return f"{which.setup.policy.value}, {which.setup.steps} steps"


def enumerate_orders(
    which: Schedule,
    tally: Tally,
    placed: Sequence[Placement] = (),
    *,
    most: int | None,
    known: Run | None = None,
    at: int | None = None,
) -> None:
    """Runs every order with at most so many overtakings (None: any number) beside these faults.

    Args:
        which: the world.
        tally: of what was tried.
        placed: the faults.
        most: overtakings.
        known: the run without any, if there was one, and `at` is not the coordinator.
        at: the place whose order is changed; None: any.
    """
    name, tried = name_of(which), set[int]()
    make = MergingCluster if at == COORDINATOR else SmallCluster
    known = known or tally.take(name, run(which, placed, make=make), placed)
    todo: deque[tuple[tuple[int, ...], Run]] = deque([((), known)])
    while todo:  # first what few overtakings lead to, as fewer may follow there
        kept, before = todo.popleft()
        if most is not None and len(kept) == most:
            continue
        for number in range(kept[-1] + 1 if kept else 0, len(before.choices)):
            choice, place = before.choices[number]
            if choice in tried or at not in (None, place):
                continue
            tried.add(choice)
            found = tally.take(name, run(which, placed, (*kept, number), make), placed, (*kept, number))
            if not found.is_futile:
                todo.append(((*kept, number), found))


def enumerate_part(which: Schedule, tally: Tally, faults: int, overtakings: int, stride: int = 1) -> None:
    """Runs every placement of so many faults, and every order with so many overtakings, one beside the other."""
    if not overtakings:
        enumerate_world(which, tally, most=faults, stride=stride)
    elif not faults:
        enumerate_orders(which, tally, most=overtakings)
    else:
        base = run(which)
        for number, first in enumerate(placements(base.deliveries)):
            if number % stride == 0:
                once = tally.take(name_of(which), run(which, (first,)), (first,))
                enumerate_orders(which, tally, (first,), most=overtakings, known=once)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--faults", type=click.IntRange(0, 2), help="Most faults of a run, in place of all parts.")
@click.option("--overtakings", type=click.IntRange(0), help="Most overtakings of a run, likewise.")
@click.option("--steps", type=click.IntRange(1), default=2, show_default=True, help="Of the job, likewise.")
@click.option("--stride", type=click.IntRange(1), default=1, show_default=True, help="Of pairs, every n-th is tried.")
def small_world(faults: int | None, overtakings: int | None, steps: int, stride: int) -> None:
    """Enumerate small worlds: faults on every delivery, messages in other orders.

    Exit code 1 when a promise was broken.
    """
    began, tally = time.monotonic(), Tally()
    is_one = faults is not None or overtakings is not None
    for most, overtaken, long in [(faults or 0, overtakings or 0, steps)] if is_one else PARTS:
        for policy in POLICIES:
            before = tally.num_runs
            enumerate_part(world(policy, long), tally, most, overtaken, stride)
            what = f"{name_of(world(policy, long))}, faults {most}, overtakings {overtaken}"
            click.echo(f"{what}: {tally.num_runs - before} runs")
    for policy in () if is_one else POLICIES:
        for places, where in ((range(NODES), "one worker"), ([COORDINATOR], "the coordinator")):
            before, known = tally.num_runs, len(tally.states)
            for place in places:
                enumerate_orders(world(policy, 1), tally, most=None, at=place)
            runs, states = tally.num_runs - before, len(tally.states) - known
            click.echo(f"{name_of(world(policy, 1))}, every order at {where}: {runs} runs, {states} states more")
    for name, placed, kept, error in tally.failed:
        where = "; ".join(f"delivery {one.delivery}: {one.blow.value}" for one in placed)
        click.echo(f"FAILED {name}, {where}, kept {list(kept)}: {error}")
    click.echo(
        f"{tally.num_runs} runs, {len(tally.states)} states, {len(tally.failed)} failed; {tally.num_futile} runs kept "
        f"what nothing overtook; {time.monotonic() - began:.1f} s"
    )
    sys.exit(1 if tally.failed else 0)


if __name__ == "__main__":
    small_world(prog_name="python -m tests.testkit.small_world")
