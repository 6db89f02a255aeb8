"""Scripts of failures: what befalls a job's nodes, by time or by step, and the ones that are built in.

A script in time is a trace. The built-in ones strike places of a plan: which nodes these are follows from where its
stages are, so that simulated and real runs of one job meet the same. Pure: no file, no clock.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import cycle

import msgspec
from msgspec.structs import replace

from planaria.plan.plan import NodeId, Plan
from planaria.protocol.messages.records import AnyRecord, PlanTaken, StepCommitted, StepSkipped
from planaria.simulate.traces.tally import WARM_UP_STEPS
from planaria.simulate.traces.trace import Change, Trace, TraceEvent


class ScriptName(enum.StrEnum):
    SINGLE = "single"
    """One node is lost."""
    BURST_IN_STAGE = "burst-in-stage"
    """Half of those that hold one layer are lost at once (all but one, where they are two or three)."""
    BURST_IN_PIPELINE = "burst-in-pipeline"
    """Half of a pipeline's nodes are lost at once."""
    STEADY_LOSS = "steady-loss"
    """Half of all nodes are lost, one after the other, none comes; each where the layers have most owners left."""
    LOSS_AND_REJOIN = "loss-and-rejoin"
    """One node is lost, and another comes."""


STEPS: Mapping[ScriptName, int] = {
    ScriptName.SINGLE: 24,
    ScriptName.BURST_IN_STAGE: 24,
    ScriptName.BURST_IN_PIPELINE: 24,
    ScriptName.STEADY_LOSS: 36,
    ScriptName.LOSS_AND_REJOIN: 28,
}
"""Length of each script, in steps of a job that loses nothing."""

_STRIKES, _JOINS = 0.25, 0.55
"""Shares of a script's length after which the first loss and the join come."""
_STEADY_UNTIL = 0.85
"""Share of a steady loss's length after which its last node is lost."""


class Clock(enum.StrEnum):
    SECONDS = "seconds"
    STEPS = "steps"


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """A script of what befalls a cluster.

    Attributes:
        trace: nodes that come and go.
        clock: what its numbers count. With `steps`, a time of 6.5 is when six steps are committed since the script
            began and half of another has passed; the notice of a removal is in steps too.
    """

    trace: Trace
    clock: Clock = Clock.SECONDS

    @property
    def name(self) -> str:
        return self.trace.name


def node_name(node: int) -> str:
    """Returns the built-in scripts' name of a job's node."""
    return f"node{node}"


def built_in(name: ScriptName, plan: Plan, length_s: float, *, least_nodes: int = 0) -> Script:
    """Returns a built-in script for a job.

    Args:
        name: the script's name.
        plan: the job's first, which says who holds what; every node of it is there at the beginning.
        length_s: seconds that the script takes.
        least_nodes: with fewer than this the job could not go on: so many are left, though one node goes always.
    """
    spare = max(1, len(plan.nodes) - least_nodes)
    events: list[tuple[float, Change, str]]
    match name:
        case ScriptName.SINGLE:
            events = _removals(_places(plan)[:1])
        case ScriptName.BURST_IN_STAGE:
            holders = _of_one_layer(plan)
            events = _removals(holders[: min(spare, max(1, len(holders) // 2))])
        case ScriptName.BURST_IN_PIPELINE:
            hit = _places(plan)
            events = _removals(hit[: min(spare, max(1, len(hit) // 2))])
        case ScriptName.STEADY_LOSS:
            gone = list(_spread(plan, min(spare, max(1, len(plan.nodes) // 2))))
            gap = (_STEADY_UNTIL - _STRIKES / 2) / max(1, len(gone) - 1)
            events = [(_STRIKES / 2 + gap * at, Change.REMOVE, node_name(node)) for at, node in enumerate(gone)]
        case ScriptName.LOSS_AND_REJOIN:
            events = _removals(_places(plan)[:1])
            events.append((_JOINS, Change.ADD, node_name(max(plan.nodes) + 1)))
    first = [TraceEvent(at_s=0.0, change=Change.ADD, node=node_name(node)) for node in plan.nodes]
    later = [TraceEvent(at_s=share * length_s, change=change, node=node) for share, change, node in events]
    return Script(trace=Trace(name=name.value, horizon_s=length_s, events=(*first, *later)))


def _removals(nodes: Collection[NodeId]) -> list[tuple[float, Change, str]]:
    return [(_STRIKES, Change.REMOVE, node_name(node)) for node in nodes]


def _pipelines(plan: Plan) -> list[list[NodeId]]:
    """Returns each pipeline's nodes, in the order of their stages."""
    return [list(dict.fromkeys(plan.node_of(worker) for worker in p.workers)) for p in plan.pipelines]


def _places(plan: Plan) -> list[NodeId]:
    """Returns the second pipeline's nodes, neighbours side by side, from its second stage on."""
    pipelines = _pipelines(plan)
    nodes = pipelines[1 % len(pipelines)]
    second = min(1, len(nodes) - 1)
    return nodes[second:] + nodes[:second]


def _of_one_layer(plan: Plan) -> list[NodeId]:
    """Returns the owners of the first layer of the first pipeline's second stage, pipeline by pipeline."""
    stages = plan.pipelines[0].stages
    layer = stages[min(1, len(stages) - 1)].first_layer
    owners = (plan.node_of(stage.worker) for stage in plan.stages() if layer in stage.layers)
    return list(dict.fromkeys(owners))


def _spread(plan: Plan, count: int) -> Iterator[NodeId]:
    """Yields so many nodes, each from another pipeline than the last where that leaves every layer as many owners as
    any other choice would."""
    pipelines = _pipelines(plan)
    turn = cycle(range(len(pipelines)))
    live = set(plan.nodes)
    for _ in range(count):
        order = [next(turn) for _ in pipelines]
        left = [node for at in order for node in pipelines[at] if node in live]
        chosen = max(left, key=lambda node: _fewest_owners(plan, live - {node}))
        hit = next(at for at in order if chosen in pipelines[at])
        while next(turn) != hit:  # the next one begins with the pipeline after it
            pass
        live.remove(chosen)
        yield chosen


def _fewest_owners(plan: Plan, live: Collection[NodeId]) -> tuple[int, int]:
    """Returns the fewest owners of any layer; and, negated, how many layers have so few: the more the better."""
    owners = [0] * plan.num_layers
    for stage in plan.stages():
        if plan.node_of(stage.worker) in live:
            for layer in stage.layers:
                owners[layer] += 1
    return min(owners), -owners.count(min(owners))


def numbered(trace: Trace, nodes: Sequence[NodeId]) -> dict[str, NodeId]:
    """Returns the job's number of each node that is there at a trace's beginning, in the trace's order."""
    return dict(zip(trace.initial, nodes, strict=True))


SOMEWHERE = "not known"
"""The zone of nodes of which a trace does not say where they are, where it says so of others."""


def zones_by_number(trace: Trace) -> tuple[str, ...]:
    """Returns the zone of each node by its number in the job: those that are there at the beginning, then those that
    come, one after the other. Empty where the trace says of none where it is."""
    added = [event for event in trace.events if event.change is Change.ADD]
    if not any(event.zone for event in added):
        return ()
    return tuple(event.zone or SOMEWHERE for event in added)


def thinned(trace: Trace, num_nodes: int) -> Trace:
    """Returns a part of a trace's nodes, evenly taken, so that it begins with so many; with all that befalls them.

    Of the nodes that come later the same share is kept. `num_nodes` is at most those that it begins with, and above 0.
    """
    first = trace.initial
    later = [name for name in dict.fromkeys(event.node for event in trace.events) if name not in set(first)]
    kept = {*_evenly(first, num_nodes), *_evenly(later, round(len(later) * num_nodes / len(first)))}
    return replace(
        trace,
        events=tuple(event for event in trace.events if event.node in kept),
        device_events=tuple(event for event in trace.device_events if event.node in kept),
    )


def _evenly(names: Sequence[str], count: int) -> list[str]:
    return [names[at * len(names) // count] for at in range(count)]


def announced(script: Script, notice: float) -> Script:
    """Returns the script with a notice, so long before, of each removal that has none."""
    events = tuple(
        replace(event, notice_s=notice) if event.change is Change.REMOVE and not event.notice_s else event
        for event in script.trace.events
    )
    return replace(script, trace=replace(script.trace, events=events))


def busiest(trace: Trace, length_s: float) -> Trace:
    """Returns the part of that length, beginning at a whole minute with a node there, in which most nodes come and go.

    The whole trace, where it is no longer.
    """
    if length_s >= trace.horizon_s:
        return trace
    times = [event.at_s for event in trace.events]
    best: tuple[int, float] | None = None
    first = end = 0
    start_s = 0.0
    counts = list(trace.counts())
    at = nodes = 0
    while start_s + length_s <= trace.horizon_s:
        while at < len(counts) and counts[at][0] <= start_s:
            nodes = counts[at][1]
            at += 1
        while first < len(times) and times[first] <= start_s:
            first += 1
        while end < len(times) and times[end] <= start_s + length_s:
            end += 1
        if nodes and (best is None or end - first > best[0]):
            best = end - first, start_s
        start_s += 60.0
    return trace.window(best[1] if best else 0.0, length_s)


class ScriptClock:
    """A run's clock, by the seconds or by the steps that have passed since the script began."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_s: float | None = None
        self._committed = 0
        self._committed_at_s = 0.0
        self._step_s = 0.0

    def note(self, record: AnyRecord, now_s: float) -> None:
        """Notes a record of the run, and when it was told, in monotonic seconds."""
        match record:
            case StepCommitted() | StepSkipped():
                self._committed = max(self._committed, record.step)
                self._committed_at_s = now_s
                if self._began_s is None and record.step >= WARM_UP_STEPS:
                    self._began_s = now_s
            case PlanTaken():
                self._step_s = record.estimated_step_s
            case _:
                pass

    def at(self, now_s: float) -> float | None:
        """Returns seconds or steps since the script began; None before. The step under way counts by the share that its
        plan's estimate says."""
        if self._began_s is None:
            return None
        if self._clock is Clock.SECONDS:
            return now_s - self._began_s
        share = (now_s - self._committed_at_s) / self._step_s if self._step_s > 0 else 0.0
        return self._committed - WARM_UP_STEPS + min(share, 0.999)

    def left_s(self, at: float, now_s: float) -> float | None:
        """Returns the seconds until then, as it seems now; None where that cannot be said."""
        here = self.at(now_s)
        if here is None:
            return None
        return (at - here) * (1.0 if self._clock is Clock.SECONDS else self._step_s)
