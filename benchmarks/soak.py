"""Soak: hours of virtual time on many nodes of a spot trace; what coordinator and workers hold must not grow.

The protocol's machines, the planner and symbolic workers of `tests.testkit`, every promise checked after every event.
Each hour it counts the bytes that the coordinator and the largest worker reach and those of the journal, processes,
open connections and what waits for its time. Exit status 1 where one of these is at the end more than
`GROWTH` times what it was after the first quarter, or a process is left over. Eight hours on 64 nodes: some minutes.
"""

from __future__ import annotations

import argparse
import gc
import sys
import types
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from adaptive import GivenSetup
from papers.traces import at_most, described, with_interval
from tests.e2e.jobs import profile
from tests.testkit.cluster.cluster import Cluster
from tests.testkit.schedules.faults import Fault, FaultKind
from tests.testkit.schedules.schedule import Schedule
from tests.testkit.schedules.weather import Weather
from tests.testkit.worker.worker import Worker

from planaria.job.registry import PolicyName
from planaria.plan.plan import ScheduleKind
from planaria.protocol.messages.journal import decode_entry, encode_entry
from planaria.protocol.run.replay import JournalState
from planaria.runtime.thresholds import ENTRIES_KEPT
from planaria.simulate.traces.formats import read_trace
from planaria.simulate.traces.trace import HOUR_S, Change, Trace

SPOT = Path(__file__).parents[2] / "shared" / "traces" / "a100x1-east1b.txt"
"""A recorded trace of up to 64 nodes, from Bamboo's repository; where it is not there, one is made up."""

GROWTH = 1.25
"""What may be at the end, over what was there after the first quarter: nodes come and go meanwhile."""

INTERVAL_S = 600.0
"""Seconds between two preemptions of the made-up trace."""

NOT_COUNTED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType)
"""What belongs to no run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What there is at one moment.

    Attributes:
        hour: of virtual time.
        step: the last committed one.
        nodes: of the job.
        processes: that live, on whatever node.
        coordinator_bytes: that the coordinator's machine reaches.
        worker_bytes: that the largest worker's machine, mail and holdings reach.
        journal_bytes: of what is left of the journal once one entry stands for all but the newest.
        connections: to the coordinator that are open.
        waiting: events that wait for their time.
    """

    hour: float
    step: int
    nodes: int
    processes: int
    coordinator_bytes: int
    worker_bytes: int
    journal_bytes: int
    connections: int
    waiting: int


class Unrecorded:
    """In place of a recorder of histories, which grow."""

    def __getattr__(self, name: str) -> Any:
        return lambda *what: None


def reached_bytes(roots: Iterable[object], without: Iterable[object]) -> int:
    """Returns the bytes of all objects that these reach, without some and what is only reached through them."""
    seen, total = {id(other) for other in without}, 0
    waiting = list(roots)
    while waiting:
        found = waiting.pop()
        if id(found) in seen or isinstance(found, NOT_COUNTED):
            continue
        seen.add(id(found))
        total += sys.getsizeof(found)
        waiting.extend(gc.get_referents(found))
    return total


def sample(cluster: Cluster) -> Sample:
    """Returns what there is now."""
    shared = [cluster, cluster.clock, cluster.network, cluster.invariants, cluster.profile, cluster.algebra,
              cluster.disk, cluster.injector, cluster.schedule, cluster.workers]  # fmt: skip
    machine = cluster.server.machine
    live = [worker for worker in cluster.workers.values() if worker.is_started and not worker.is_over]
    past = JournalState.of(map(decode_entry, cluster.journal[:-ENTRIES_KEPT])).written()
    return Sample(
        hour=round(cluster.clock.now / HOUR_S, 2),
        step=machine.step - 1,
        nodes=len(machine.state.nodes),
        processes=len(live),
        coordinator_bytes=reached_bytes([machine], [*shared, cluster.server]),
        worker_bytes=max((reached_bytes(_held(worker), [*shared, *live]) for worker in live), default=0),
        journal_bytes=len(encode_entry(past)) + sum(map(len, cluster.journal[-ENTRIES_KEPT:])),
        connections=sum(not c.is_closed and not c.is_left for c in cluster.server.accepted),
        waiting=cluster.clock.num_waiting,
    )


def _held(worker: Worker) -> list[object]:
    return [worker.machine, worker.mail, worker.holdings.replicas, worker.holdings.accumulators, worker.interpreter]


def soak(trace: Trace, hours: float, layer_s: float, policy: PolicyName, seed: int) -> Iterator[Sample]:
    """Yields a sample after each hour, and at the end. Raises BrokenPromise."""
    setup = GivenSetup(
        num_layers=8, is_tied=True, is_large=False, num_nodes=len(trace.initial), devices_per_node=1,
        fault_tolerance=1, min_nodes=4, num_microbatches=64, steps=10**6, checkpoint_every=20,
        order=ScheduleKind.ONE_F_ONE_B, waits=True, policy=policy, given=profile(layer_s=layer_s),
    )  # fmt: skip
    weather = Weather(compute_s=1e-3, network_s=1e-3, control_s=1e-3, spread=2.0, is_as_profiled=True)
    cluster = Cluster(Schedule(seed=seed, setup=setup, weather=weather, faults=tuple(faults_of(trace))))
    cluster.recorder = Unrecorded()  # type: ignore[assignment]
    marks = [HOUR_S * hour for hour in range(1, int(hours) + 1)] or [HOUR_S * hours]
    for mark in marks:
        while cluster.clock.now < mark:
            assert cluster.clock.tick(), "nothing happens any more"
            if cluster.invariants.touched:
                cluster.invariants.check()
        yield sample(cluster)


def faults_of(trace: Trace) -> Iterator[Fault]:
    """Yields what befalls the nodes of a trace; they are numbered as they come."""
    number = {name: at for at, name in enumerate(trace.initial)}
    for event in trace.events:
        if event.change is Change.ADD and event.node not in number:
            number[event.node] = len(number)
            yield Fault(kind=FaultKind.JOIN, delay_s=event.at_s)
        elif event.change is Change.REMOVE:
            kind = FaultKind.NOTICE if event.notice_s else FaultKind.KILL
            yield Fault(kind=kind, nodes=(number[event.node],), delay_s=event.at_s, for_s=event.notice_s)


def grown(samples: list[Sample]) -> list[str]:
    """Returns what grew, or is left over."""
    first, last = samples[len(samples) // 4], samples[-1]
    found = [f"{last.processes} processes of {last.nodes} nodes"] if last.processes > last.nodes + 2 else []
    for name in ("coordinator_bytes", "worker_bytes", "journal_bytes", "connections", "waiting"):
        before, now = getattr(first, name) / max(1, first.nodes), getattr(last, name) / max(1, last.nodes)
        if now > GROWTH * before:
            found.append(f"{name} a node: {before:.0f}, and {now:.0f} at the end")
    return found


def main() -> int:
    """Soaks, and says what grew."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hours", type=float, default=8.0, help="of virtual time (default: 8)")
    parser.add_argument("--nodes", type=int, default=64, help="at most (default: 64)")
    parser.add_argument("--trace", type=Path, help="in any format of planaria simulate (default: SPOT)")
    parser.add_argument("--layer", type=float, default=1.0, help="seconds of a layer's forward (default: 1)")
    parser.add_argument("--policy", type=PolicyName, default=PolicyName.TEMPLATES, help="(default: templates)")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    path = given.trace or (SPOT if SPOT.exists() else None)
    if path is None:
        trace = with_interval(given.nodes, INTERVAL_S, given.hours, "made up", seed=given.seed)
    else:
        trace = at_most(read_trace(path.read_text(), path.name).trace, given.nodes)
    print(described(trace))
    samples: list[Sample] = []
    for found in soak(trace, given.hours, given.layer, given.policy, given.seed):
        samples.append(found)
        print(", ".join(f"{name} {value}" for name, value in asdict(found).items()), flush=True)
    wrong = grown(samples)
    print("\n".join(wrong) or "nothing grew")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
