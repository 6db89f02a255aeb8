"""References for simulated runs: the physical limit, on-demand nodes, and an oracle that knows the trace.

None of them is a policy: nobody could train so.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.thresholds import ORACLE_RUNS
from planaria.simulate.results import RunResult
from planaria.simulate.run_model import Terms
from planaria.simulate.simulation import Simulation
from planaria.simulate.trace_events import TraceEvents
from planaria.simulate.trace_run import TraceRun
from planaria.simulate.traces.trace import HOUR_S, Change, Trace, TraceEvent

ON_DEMAND = "on-demand"
IDEAL = "ideal"
ORACLE = "oracle"
REFERENCES = (ON_DEMAND, IDEAL, ORACLE)


def limit_samples_per_s(profile: ModelProfile) -> float:
    """Returns samples a second of one device that always computes: no bubbles, messages, sums or optimizer."""
    seconds = sum(
        min((times.forward_s + times.backward_s) * times.num_devices for times in layer.times)
        for layer in profile.layers
    )
    return profile.microbatch_size / seconds


def run_ideal(profile: ModelProfile, devices_per_node: int, terms: Terms, trace: Trace) -> RunResult:
    """Returns the run of the physical limit: every live device is useful all the time, and recovery takes no time."""
    rate = limit_samples_per_s(profile) * devices_per_node
    now, samples, nodes = 0.0, 0.0, 0
    node_s = cost = idle_s = 0.0
    timeline: list[tuple[float, int, float]] = []
    zones: dict[str, str] = {}
    price = 0.0
    losses = joins = 0
    completed = False
    events: list[TraceEvent | None] = [*trace.events, None]
    for event in events:
        at_s = trace.horizon_s if event is None else event.at_s
        span = at_s - now
        if terms.samples is not None and nodes and samples + rate * nodes * span >= terms.samples:
            span = (terms.samples - samples) / (rate * nodes)
            completed = True
        samples += rate * nodes * span
        node_s += nodes * span
        cost += price * span / HOUR_S
        idle_s += 0.0 if nodes else span
        now += span
        if completed or event is None:
            break
        if event.change is Change.ADD:
            zones[event.node] = event.zone
        zone = zones[event.node]
        sign = 1 if event.change is Change.ADD else -1
        nodes += sign
        price += sign * terms.prices.zones.get(zone, terms.prices.spot)
        losses += sign < 0
        joins += sign > 0 and event.at_s > 0
        if terms.wants_timeline:
            if timeline and timeline[-1][0] == now:
                timeline.pop()
            timeline.append((now, nodes, rate * nodes))
    return RunResult(
        policy=IDEAL,
        trace=trace.name,
        seconds=now,
        samples=samples,
        steps=int(samples / (terms.settings.num_microbatches * profile.microbatch_size)),
        seconds_by={"training": now - idle_s, "idle": idle_s},
        node_hours=node_s / HOUR_S,
        cost=cost,
        losses=losses,
        loss_times=0,
        joins=joins,
        survived={},
        fatal=0,
        waits=0,
        moved_bytes=0,
        completed=completed,
        timeline=tuple(timeline),
    )


def run_on_demand(simulation: Simulation, horizon_s: float) -> RunResult:
    """Returns a run on the job's first nodes, never lost. The simulation's prices are those of on-demand nodes."""
    nodes = simulation.terms.settings.num_nodes
    events = tuple(TraceEvent(at_s=0.0, change=Change.ADD, node=f"node{at}") for at in range(nodes))
    return simulation.run(Trace(name=ON_DEMAND, horizon_s=horizon_s, events=events))


class Oracle:
    """The policy that knows the trace: it picks the best of several policies' simulations at each disturbance.

    Args:
        simulations: one of each policy that it chooses from.
        terms: what all runs of the job have in common.
    """

    def __init__(self, simulations: Sequence[Simulation], terms: Terms) -> None:
        self._simulations = simulations
        self._terms = terms

    def run(self, trace: Trace) -> RunResult:
        """Returns the best run over a trace."""
        course = TraceEvents.of(trace, self._simulations[0].subject.timings.start_s)
        alive = [TraceRun(simulation, course) for simulation in self._simulations]
        for run in alive:
            run.begin()
        ended: list[TraceRun] = [run for run in alive if run.is_over]
        alive = _best([run for run in alive if not run.is_over])
        while alive:
            following: list[TraceRun] = []
            for run in alive:
                for simulation in self._simulations:
                    other = run.fork(simulation)
                    other.go_on()
                    (ended if other.is_over else following).append(other)
            alive = _best(following)
        # A single policy's run may have been dropped where another led; it is never worse to have it.
        results = [run.result() for run in ended] + [simulation.follow(course) for simulation in self._simulations]
        best = max(results, key=lambda result: (result.samples_per_s, -result.cost))
        return msgspec.structs.replace(best, policy=ORACLE)


def _best(runs: Sequence[TraceRun]) -> list[TraceRun]:
    """Returns the runs to keep of those after the same disturbance: the best of each state, and of those the best."""
    of_state: dict[object, TraceRun] = {}
    for run in runs:
        other = of_state.get(run.state)
        if other is None or run.microbatches > other.microbatches:
            of_state[run.state] = run
    return sorted(of_state.values(), key=lambda run: -run.microbatches)[:ORACLE_RUNS]
