"""The space of splits that a template is chosen from, as arrays: layers into stages, stages onto the devices of nodes.

A split is a walk over states (devices used, layers done) from (0, 0) to (all, all); a stage is a step of it. Since
every node's devices are all used, the number of devices used says where in its node a stage begins, and so whether a
message stays inside the node.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from itertools import chain

import numpy as np
import numpy.typing as npt

from planaria.plan.compiled import Numbers
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.costs.pipeline_time import Floats, Ints
from planaria.plan.costs.stage_costs import StageCosts
from planaria.plan.plan import ScheduleKind
from planaria.plan.settings import PlannerSettings

NEVER = -1
"""Limit of the stages that may follow a stage that fits no device."""
ALWAYS = 1 << 30

Split = tuple[tuple[int, int], ...]
"""A split: for each stage, in layer order, the layer that it ends before and its number of devices."""
Stages = tuple[Ints, Ints, Ints, Ints]
"""Stages of splits, one split a row: places of the device counts, first layers, ends, and numbers of devices."""


@dataclass(frozen=True, kw_only=True)
class PrefixCosts:
    """Cost arrays of one direction; see `Space`.

    Attributes:
        forward_s: device counts x (layers + 1), prefix sums.
        backward_s: device counts x (layers + 1), prefix sums.
        link_s: 2 x (layers + 1): a message over the boundary before the layer, between nodes (0) and within one (1).
        limit: device counts x (layers + 1) x (layers + 1): the most stages that may follow a stage from one boundary to
            the other for its memory to suffice; NEVER, or ALWAYS and more.
    """

    forward_s: Floats
    backward_s: Floats
    link_s: Floats
    limit: Ints

    def tables(self, *, compiled: bool) -> tuple[Numbers, Numbers, Numbers, Numbers, Numbers]:
        """Returns the arrays for kernels: themselves where these are compiled, else lists. Limits have one row a device
        count: first layer by first layer, and again end by end."""
        return self._arrays if compiled else self._lists

    @cached_property
    def _arrays(self) -> tuple[Numbers, Numbers, Numbers, Numbers, Numbers]:
        counts = len(self.limit)
        limit, limit_to = self.limit.reshape(counts, -1), self.limit.transpose(0, 2, 1).reshape(counts, -1)
        return self.forward_s, self.backward_s, self.link_s, limit, limit_to

    @cached_property
    def _lists(self) -> tuple[Numbers, Numbers, Numbers, Numbers, Numbers]:
        forward_s, backward_s, link_s, limit, limit_to = (array.tolist() for array in self._arrays)
        return forward_s, backward_s, link_s, limit, limit_to

    def reversed(self) -> PrefixCosts:
        """Returns the same costs seen from the last layer and the last device."""

        def sums(values: Floats) -> Floats:
            return np.ascontiguousarray(values[:, -1:] - values[:, ::-1])

        return PrefixCosts(
            forward_s=sums(self.forward_s),
            backward_s=sums(self.backward_s),
            link_s=np.ascontiguousarray(self.link_s[:, ::-1]),
            limit=np.ascontiguousarray(self.limit[:, ::-1, ::-1].transpose(0, 2, 1)),
        )


@dataclass(frozen=True, kw_only=True)
class Space:
    """All splits of a model for nodes of `per_node` devices.

    Attributes:
        num_layers: the model's number of layers.
        per_node: M: the devices of each node.
        counts: the numbers of devices that a stage may have, ascending.
        schedule: order of forwards and backwards.
        overlap: whether messages travel beside compute.
        ahead: the arrays from the first layer to the last.
        back: the arrays from the last layer to the first.
    """

    num_layers: int
    per_node: int
    counts: Ints
    schedule: ScheduleKind
    overlap: bool
    ahead: PrefixCosts
    back: PrefixCosts = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "back", self.ahead.reversed())

    @cached_property
    def limited(self) -> bool:
        """Whether some stage's memory depends on its place."""
        return bool((self.ahead.limit < ALWAYS).any())

    def rows(self, splits: Sequence[Split]) -> tuple[Floats, Floats, Floats]:
        """Returns forward, backward and link times of the chains of splits with equally many stages, one a row."""
        place, start, end, devices = self.stages(splits)
        within = (np.cumsum(devices, axis=1) % self.per_node != 0).astype(np.int64)
        costs = self.ahead
        return (
            costs.forward_s[place, end] - costs.forward_s[place, start],
            costs.backward_s[place, end] - costs.backward_s[place, start],
            costs.link_s[within, end][:, :-1],
        )

    def fits(self, split: Split) -> bool:
        """Returns whether every stage has the memory for what is in flight at its place."""
        start, after, follow = 0, len(split), self._follow
        for end, devices in split:
            after -= 1
            if follow[devices][start][end] < after:
                return False
            start = end
        return True

    def stages(self, splits: Sequence[Split]) -> Stages:
        """Returns the stages of splits with equally many stages, as arrays."""
        numbers = chain.from_iterable(chain.from_iterable(splits))
        shape = (len(splits), len(splits[0]), 2)
        stages = np.fromiter(numbers, dtype=np.int64, count=math.prod(shape)).reshape(shape)
        end, devices = stages[:, :, 0], stages[:, :, 1]
        start = np.concatenate([np.zeros_like(end[:, :1]), end[:, :-1]], axis=1)
        return np.searchsorted(self.counts, devices), start, end, devices

    def fit(self, stages: Stages) -> npt.NDArray[np.bool_]:
        """Returns which of the splits with these stages fit the memory."""
        place, start, end, _ = stages
        after = np.arange(end.shape[1])[::-1]
        return np.asarray((self.ahead.limit[place, start, end] >= after).all(axis=1))

    def allows(self, split: Split) -> bool:
        """Returns whether every stage has the memory for what it keeps if none follows it."""
        place, start, end, _ = self.stages([split])
        return bool((self.ahead.limit[place, start, end] >= 0).all())

    @cached_property
    def _follow(self) -> dict[int, list[list[int]]]:
        """Limits of stages by number of devices, see `PrefixCosts`."""
        return dict(zip(self.counts.tolist(), self.ahead.limit.tolist(), strict=True))

    def least_period_s(self, nodes: int) -> float:
        """Returns the least time of a largest stage: the slowest layer, or an even share of the devices' time."""
        costs, counts = self.ahead, self.counts
        layers = np.diff(costs.forward_s + costs.backward_s, axis=1)
        even = float((layers * counts[:, None]).min(axis=0).sum()) / (nodes * self.per_node)
        return max(float(layers.min(axis=0).max()), even)

    def limits_digest(self, most_stages: int, longest_s: float) -> bytes:
        """Returns a digest, the same for spaces whose stages of up to `longest_s` have the same limits of followers."""
        costs = self.ahead
        prefix = costs.forward_s + costs.backward_s
        compute = prefix[:, None, :] - prefix[:, :, None]
        matters = (compute <= longest_s * (1 + 1e-6)) & np.triu(np.ones(compute.shape[1:], dtype=bool), k=1)
        limits: Ints = np.where(matters, np.minimum(costs.limit, most_stages), 0)
        return hashlib.sha256(limits.astype(np.int32).tobytes()).digest()

    def splits(self, nodes: int, most: int) -> list[Split] | None:
        """Returns every split that fits onto `nodes` nodes, or None where there are more than `most`."""
        found: list[Split] = []
        for split in self._walks(nodes):
            if len(found) > most:
                return None
            if self.fits(split):
                found.append(split)
        return found

    def neighbours(self, split: Split) -> Iterator[Split]:
        """Yields splits that differ in a layer or in the devices of two neighbouring stages; unchecked for memory."""
        ends, devices = [end for end, _ in split], [count for _, count in split]
        starts = [0, *ends[:-1]]
        yield from self._one_layer_moved(split)
        allowed = set(self.counts.tolist())
        used = 0
        for at in range(len(split) - 1):
            used += devices[at]
            if used % self.per_node == 0:
                continue
            both = devices[at] + devices[at + 1]
            if both in allowed:
                yield (*split[:at], (ends[at + 1], both), *split[at + 2 :])
            for count in allowed - {devices[at]}:
                if both - count in allowed:
                    for end in {ends[at], min(ends[at] + 1, ends[at + 1] - 1), max(ends[at] - 1, starts[at] + 1)}:
                        yield (*split[:at], (end, count), (ends[at + 1], both - count), *split[at + 2 :])
        for at, (end, count) in enumerate(split):
            for cut in range(starts[at] + 1, end):
                for first in allowed:
                    if count - first in allowed:
                        yield (*split[:at], (cut, first), (end, count - first), *split[at + 1 :])

    @staticmethod
    def _one_layer_moved(split: Split) -> Iterator[Split]:
        """Yields splits with a layer moved between two stages, and one across each between; near ones first."""
        layers = [end - start for start, (end, _) in zip([0, *(end for end, _ in split[:-1])], split, strict=True)]
        later, earlier = (tuple((end + step, devices) for end, devices in split) for step in (1, -1))
        for distance in range(1, len(split)):
            for at in range(len(split) - distance):
                beyond = at + distance
                for moved, giver in ((later, beyond), (earlier, at)):
                    if layers[giver] > 1:
                        yield (*split[:at], *moved[at:beyond], *split[beyond:])

    def num_splits(self, nodes: int) -> float:
        """Returns the number of all splits, whether they fit or not."""
        return float(self._ways(nodes)[-1, -1])

    def _ways(self, nodes: int) -> Floats:
        """Returns in how many ways so many devices take so many layers, as (devices used + 1) x (layers + 1). They are
        as many seen from the end, since every node has the same devices."""
        ways = np.zeros((nodes * self.per_node + 1, self.num_layers + 1))
        ways[0, 0] = 1.0
        for used in range(1, len(ways)):
            last = self.counts[self.counts <= (used - 1) % self.per_node + 1]
            with np.errstate(over="ignore"):
                np.cumsum(ways[used - last].sum(axis=0)[:-1], out=ways[used, 1:])
        return ways

    def _walks(self, nodes: int) -> Iterator[Split]:
        """Yields every split, whether it fits or not; no walk is begun that does not come to the end."""
        ends = [np.flatnonzero(row).tolist() for row in self._ways(nodes)[::-1, ::-1]]
        counts, all_devices = self.counts.tolist(), nodes * self.per_node
        begun: list[tuple[Split, int]] = [((), 0)] if 0 in ends[0] else []
        while begun:
            split, used = begun.pop()
            if used == all_devices:
                yield split
                continue
            start = split[-1][0] if split else 0
            room = self.per_node - used % self.per_node
            following = [
                ((*split, (end, devices)), used + devices)
                for devices in counts
                if devices <= room
                for end in ends[used + devices][bisect_right(ends[used + devices], start) :]
            ]
            begun += reversed(following)


def spaces(
    profile: ModelProfile, settings: PlannerSettings, largest_state: int | None = None
) -> Callable[[int], Space]:
    """Returns `make_space` for pipelines of so many nodes; all have the same one, but where what a stage keeps depends
    on the stages before it and memory is limited: then those that can have as many stages as there are layers."""
    if not (settings.memory_bytes and settings.schedule.splits_backward):
        space = make_space(profile, settings, largest_state)
        return lambda nodes: space
    a_stage_each = -(-profile.num_layers // settings.devices_per_node)
    made = cache(lambda nodes: make_space(profile, settings, largest_state, nodes=nodes))
    return lambda nodes: made(min(nodes, a_stage_each))


def make_space(
    profile: ModelProfile, settings: PlannerSettings, largest_state: int | None = None, nodes: int | None = None
) -> Space:
    """Returns a profile's space under a job's settings; memory limits as for the largest share of microbatches, and
    where backwards are split for as many stages as so many nodes, or the job's, can have.

    With `largest_state`, no stage has more bytes of state, and each has room for so many of another's.
    """
    usable = [
        d
        for d in profile.device_counts
        if d <= (settings.devices_per_node if settings.wide_stages else 1)
        and not (settings.powers_of_two and d & (d - 1))
    ]
    times = [[layer.on(d) for layer in profile.layers] for d in usable]
    costs = StageCosts(profile)
    boundaries = range(profile.num_layers + 1)
    return Space(
        num_layers=profile.num_layers,
        per_node=settings.devices_per_node,
        counts=np.array(usable, dtype=np.int64),
        schedule=settings.schedule,
        overlap=settings.overlap,
        ahead=PrefixCosts(
            forward_s=_prefix([[t.forward_s for t in row] for row in times], profile.num_layers),
            backward_s=_prefix([[t.backward_s for t in row] for row in times], profile.num_layers),
            link_s=np.array([[costs.link_s(at, same_node=same) for at in boundaries] for same in (False, True)]),
            limit=_limits(profile, settings, usable, largest_state, nodes or settings.largest),
        ),
    )


def _prefix(rows: Sequence[Sequence[float]], num_layers: int) -> Floats:
    sums = np.zeros((len(rows), num_layers + 1))
    if rows:
        np.cumsum(np.array(rows), axis=1, out=sums[:, 1:])
    return sums


def _limits(
    profile: ModelProfile, settings: PlannerSettings, usable: Sequence[int], largest_state: int | None, nodes: int
) -> Ints:
    """Returns, for each device count, first and end layer, how many stages may follow."""
    size = profile.num_layers + 1
    limits = np.full((len(usable), size, size), ALWAYS, dtype=np.int64)
    if not settings.memory_bytes or not usable:
        return limits
    state, activations, workspace = _bytes(profile, settings.schedule)
    share = max(settings.shares)
    most = min(profile.num_layers, nodes * settings.devices_per_node)
    flights = [
        settings.schedule.in_flight(after, share, stages_before=max(0, most - 1 - after))
        for after in range(profile.num_layers)
    ]
    for place, devices in enumerate(usable):
        room = (settings.memory_bytes - profile.device.process_bytes) * devices - state - workspace
        if largest_state is not None:
            room = np.where(state <= largest_state, room - largest_state, -1)
        flight = np.where(activations > 0, room // np.maximum(activations, 1), share)
        # in_flight grows with the stages after, so the most of them is where it first passes what there is room for.
        follow = np.searchsorted(flights, np.minimum(flight, share), side="right") - 1
        limits[place] = np.where((room < 0) | (follow < 0), NEVER, np.where(flight >= share, ALWAYS, follow))
    return limits


@lru_cache(maxsize=2)
def _bytes(profile: ModelProfile, schedule: ScheduleKind) -> tuple[Ints, Ints, Ints]:
    """Returns the stage's state, what it keeps of one microbatch, and its workspace, from each boundary to each."""
    costs, size = StageCosts(profile, schedule), profile.num_layers + 1
    state: Ints = np.zeros((size, size), dtype=np.int64)
    workspace: npt.NDArray[np.int64] = np.zeros((size, size), dtype=np.int64)
    layers = profile.layers
    for first in range(profile.num_layers):
        state[first, first + 1 :] = [costs.state_bytes(first, end) for end in range(first + 1, size)]
        workspace[first, first + 1 :] = np.maximum.accumulate([layer.workspace_bytes for layer in layers[first:]])
    kept: Ints = np.zeros((size, size), dtype=np.int64)
    for first in range(profile.num_layers):
        kept[first, first + 1 :] = costs.kept_bytes(first)
    return state, kept, workspace
