"""The time of transfers: how long the state that a plan moves is under way before its first step.

Each node has one way out and one way in, which its devices share; inside a node each device has one of each. All pairs
of a sender and a receiver send at once, and share the ways evenly; messages of one pair go one after another. What is
not known here: switches that several nodes share, and steps that go on beside the transfers.

Who waits for state begins late, and others go on: a step is longer only by as much as those who come late hold it up
(`wait_s`). A stage far down its pipeline has nothing to do at first anyway.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from planaria.estimate.conditions import AS_PROFILED, Conditions
from planaria.estimate.durations import Durations
from planaria.estimate.step_time import EstimateCache, outline
from planaria.plan.costs.model_profile import LinkCost, Links, ModelProfile
from planaria.plan.costs.network import Network
from planaria.plan.plan import NodeId, Plan, WorkerId

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferTime:
    """The time of a plan's transfers.

    Attributes:
        time_s: from the beginning until the last byte has come.
        bound_s: nothing is faster, in whatever order and however the ways are shared: the busiest way has to carry
            all that goes through it.
        moved_bytes: state that moves in all.
        busiest_bytes: what the busiest node sends to other nodes, or gets from them.
        come_s: when each worker that gets state has all of it.
    """

    time_s: float
    bound_s: float
    moved_bytes: int
    busiest_bytes: int
    come_s: Mapping[WorkerId, float]


ALIKE = Network()
"""A network whose links between nodes are alike."""


def transfer_time(plan: Plan, links: Links, network: Network | None = None) -> TransferTime:
    """Returns the predicted time of the plan's transfers; all zero where it has none."""
    inner, outer = _Flows(), _Flows()
    between = (network or ALIKE).link
    for move in plan.transfers:
        size = move.moved_bytes(plan.groups[move.group])
        source, target = plan.node_of(move.source), plan.node_of(move.target)
        if source == target:
            inner.add(move.source, move.target, size, (move.source, move.target), links.within_node)
        else:
            outer.add(source, target, size, (move.source, move.target), between(links, source, target))
    come_s = inner.come_s()
    for worker, seconds in outer.come_s().items():
        come_s[worker] = max(seconds, come_s.get(worker, 0.0))
    return TransferTime(
        time_s=max(come_s.values(), default=0.0),
        bound_s=max(inner.bound_s(), outer.bound_s()),
        moved_bytes=inner.total_bytes + outer.total_bytes,
        busiest_bytes=outer.busiest_bytes,
        come_s=come_s,
    )


def wait_s(
    plan: Plan,
    profile: ModelProfile,
    come_s: Mapping[WorkerId, float],
    conditions: Conditions = AS_PROFILED,
    known: EstimateCache | None = None,
) -> float:
    """Returns by how many seconds the plan's first step is longer, because these workers have their state so late.

    Args:
        plan: whose step it is.
        profile: what layers and links cost.
        come_s: see `TransferTime`.
        conditions: what is assumed of machines beside the profile.
        known: see `outline`.
    """
    if not come_s:
        return 0.0
    usual_s = outline(plan, profile, conditions, known).step_time_s
    return max(0.0, outline(plan, profile, replace(conditions, late_s=come_s), known).step_time_s - usual_s)


def busy_s(
    plan: Plan, profile: ModelProfile, nodes: Collection[NodeId], conditions: Conditions = AS_PROFILED
) -> dict[NodeId, float]:
    """Returns for how many seconds of a step each of these nodes gets sums and messages over its link; it sends for
    about as long. What stretches steps is compute, most of all: here links are as the profile says.

    Args:
        plan: whose step it is.
        profile: what layers and links cost.
        nodes: of the plan, or others.
        conditions: what is assumed of machines beside the profile.
    """
    durations = Durations(plan, profile, conditions)
    busy = dict.fromkeys(nodes, 0.0)
    for worker, groups in plan.groups_of.items():
        if (node := plan.node_of(worker)) in busy:
            busy[node] += sum(durations.sum_times(worker, group).read_s for group in groups)
    for route in plan.routes:
        for hop, following in pairwise(route.hops):
            ends = plan.node_of(hop.worker), plan.node_of(following.worker)
            if ends[0] == ends[1] or busy.keys().isdisjoint(ends):
                continue
            seconds = durations.message_s(hop.worker, following.worker, hop.end_layer) * len(route.microbatches)
            for node in busy.keys() & ends:
                busy[node] += seconds
    return busy


class _Flows:
    """Flows from outgoing to incoming links, by pair of workers."""

    def __init__(self) -> None:
        self._flows: dict[tuple[int, int], list[int]] = {}
        self._links: dict[tuple[int, int], LinkCost] = {}
        self._through: dict[tuple[bool, int], dict[LinkCost, int]] = {}

    def add(self, out: int, into: int, size_bytes: int, pair: tuple[int, int], link: LinkCost) -> None:
        flow = self._flows.setdefault(pair, [out, into, 0, 0])
        self._links[pair] = link
        flow[2] += size_bytes
        flow[3] += 1
        for way in ((True, out), (False, into)):
            through = self._through.setdefault(way, {})
            through[link] = through.get(link, 0) + size_bytes

    @property
    def total_bytes(self) -> int:
        return sum(size for _, _, size, _ in self._flows.values())

    @property
    def busiest_bytes(self) -> int:
        return max((sum(through.values()) for through in self._through.values()), default=0)

    def bound_s(self) -> float:
        """Returns the least seconds of the busiest way: the shortest latency, and all bytes at their links' rates."""
        return max(
            (
                min(link.latency_s for link in through)
                + sum(size / link.bandwidth_bytes_per_s for link, size in through.items())
                for through in self._through.values()
            ),
            default=0.0,
        )

    def come_s(self) -> dict[WorkerId, float]:
        """Returns when each receiver has all. Each flow begins after the latencies of its messages, and has an even
        share of the fuller of its two ways; the shares change whenever a flow begins or ends."""
        come_s: dict[WorkerId, float] = {}
        if not self._flows:
            return come_s
        targets = np.array([target for _, target in self._flows], np.int64)
        table = np.array(list(self._flows.values()), np.int64)
        out, into = _numbered(table[:, 0].tolist()), _numbered(table[:, 1].tolist())
        links = [self._links[pair] for pair in self._flows]
        left = table[:, 2] / np.array([link.bandwidth_bytes_per_s for link in links])
        begins = table[:, 3] * np.array([link.latency_s for link in links])
        now = 0.0
        waiting = np.array(sorted(set(begins.tolist())))
        while len(left):
            active = begins <= now
            rates = _rates(out, into, active)
            ends = np.where(active, left / np.maximum(rates, 1e-300), np.inf)
            # A flow that ends within rounding of the first ends with it.
            step = float(ends.min()) if active.any() else np.inf
            waiting = waiting[waiting > now]
            if len(waiting) and now + step > waiting[0]:
                left = left - rates * (waiting[0] - now)
                now = float(waiting[0])
                continue
            now += step
            left = left - rates * step
            going = ~(active & (ends <= step * (1 + 1e-9)))
            come_s.update((WorkerId(int(target)), now) for target in targets[~going])
            left, out, into, begins, targets = left[going], out[going], into[going], begins[going], targets[going]
        return come_s


def _numbered(ways: Sequence[int]) -> _Ints:
    """Returns the same links numbered 0, 1, ..."""
    number = {way: at for at, way in enumerate(dict.fromkeys(ways))}
    return np.array([number[way] for way in ways], np.int64)


def _rates(out: _Ints, into: _Ints, active: npt.NDArray[np.bool_]) -> _Floats:
    """Returns the share of a whole link that each flow has; 0 for those that have not begun."""
    weights = active.astype(np.float64)
    fullest = np.maximum(np.bincount(out, weights)[out], np.bincount(into, weights)[into])
    return weights / np.maximum(fullest, 1.0)
