"""Durations: how long each instruction of a plan's programs takes by itself, in seconds."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property, lru_cache

from planaria.estimate.conditions import Conditions
from planaria.estimate.gradient_sums import SumTimes, spread_sum, sum_by_hosts
from planaria.plan.costs.byte_counts import held_bytes, message_bytes, part_bytes
from planaria.plan.costs.model_profile import LinkCost, ModelProfile
from planaria.plan.plan import NodeId, Pipeline, Plan, PlanError, WorkerId
from planaria.plan.program.instructions import Instruction, Op
from planaria.plan.sums.slices import slices_in

MOST_COMPUTED = 1 << 16
"""Forwards and backwards whose durations are remembered; then all are forgotten."""


class Computed(dict[tuple[int, float, Op, int, int, tuple[int, ...]], float]):
    """Durations under one profile, whatever the plan: seconds of a forward or backward on so many devices of this
    speed, of these layers (the first one, and the end), of which so many are counted.

    Args:
        profile: what layers cost.
        sharing: so many workers of one device each do each together.
    """

    def __init__(self, profile: ModelProfile, sharing: int) -> None:
        self._times = {count: [layer.on(count) for layer in profile.layers] for count in profile.device_counts}
        if sharing > 1:
            self._times[1] = [layer.shared_by(sharing) for layer in profile.layers]

    def __missing__(self, key: tuple[int, float, Op, int, int, tuple[int, ...]]) -> float:
        if len(self) >= MOST_COMPUTED:
            self.clear()
        devices, speed, op, first, end, counted = key
        times = self._times[devices]
        total = 0.0
        if op in (Op.FORWARD, Op.SHADOW_FORWARD):
            total += sum(t.forward_s for t in times[first:end])
        if op in (Op.BACKWARD, Op.BACKWARD_INPUT, Op.SHADOW_BACKWARD):
            total += sum(t.backward_input_s for t in times[first:end])
        if op in (Op.BACKWARD, Op.BACKWARD_WEIGHT, Op.SHADOW_BACKWARD):
            total += sum(times[layer].backward_weight_s for layer in counted)
        if op is Op.BACKWARD_WEIGHT:
            total += sum(times[layer].split_s for layer in counted)
        found = self[key] = total / speed
        return found


@lru_cache(maxsize=16)
def _computed(profile: ModelProfile, sharing: int) -> Computed:
    return Computed(profile, sharing)


class Durations:
    """Durations of one plan's instructions under one profile.

    A worker drives the devices of its widest stage, all of one node. Each holds an equal share of every group that the
    worker owns; they read, sum and apply their shares side by side. A message between two stages is whole. Where
    workers of a stage share microbatches, what they exchange is part of what each takes.

    Raises:
        PlanError: a stage has more or fewer devices than the profile has times for.
    """

    def __init__(self, plan: Plan, profile: ModelProfile, conditions: Conditions) -> None:
        self._plan = plan
        self._profile = profile
        self._links = profile.links
        self._conditions = conditions
        for count in sorted(_device_counts(plan).difference(profile.device_counts)):
            raise PlanError(
                f"The plan has a stage of {count} devices, and the profile has times for stages of "
                f"{', '.join(map(str, profile.device_counts))}. Profile that number too, or plan without it."
            )
        self.computed = _computed(profile, plan.num_sharing)
        self._spread: dict[tuple[int, int, int, float], SumTimes] = {}
        """Times of sums whose owners are on different nodes, by group, devices, others that count, and speed."""
        self._by_hosts: dict[object, SumTimes] = {}
        """Times of other sums, by worker, owners, those that count, and bytes."""

    @property
    def network_key(self) -> object:
        """What links depend on beside the profile, hashable."""
        network = self._conditions.network
        return None if network is None else network.key

    @property
    def devices(self) -> dict[WorkerId, int]:
        """Number of devices that each worker drives."""
        return self._plan.devices_of

    @cached_property
    def late_s(self) -> dict[WorkerId, float]:
        """Seconds after the step's beginning at which each worker begins."""
        late_s = dict.fromkeys(self.devices, 0.0)
        late_s.update((worker, seconds) for worker, seconds in self._conditions.late_s.items() if worker in late_s)
        return late_s

    @cached_property
    def speeds(self) -> dict[WorkerId, float]:
        """Speed of each worker's node."""
        node_of, speed = self._plan.node_of, self._conditions.speed
        if not self._conditions.node_speeds:
            return dict.fromkeys(self.devices, 1.0)
        return {worker: speed(node_of(worker)) for worker in self.devices}

    @cached_property
    def is_spread(self) -> bool:
        """Whether all who own the same take equally long to read it: no group is counted twice on one node, and links
        are alike."""
        plan, per_node = self._plan, self._plan.devices_per_node
        if self._conditions.network is not None:
            return False
        if per_node == 1:
            return True
        if not plan.shadows and sum(len(p.nodes(per_node)) for p in plan.pipelines) == len(plan.nodes):
            alike = {pipeline.form(per_node): pipeline for pipeline in plan.pipelines}
            return all(_is_spread(plan, pipeline) for pipeline in alike.values())
        return all(count == 1 for on in self._counting_on for count in on.values())

    @cached_property
    def _counting(self) -> tuple[frozenset[WorkerId], ...]:
        """Workers that own each group and have something in its sum."""
        return tuple(self._counting_of(group) for group in range(len(self._plan.groups)))

    @cached_property
    def _counting_on(self) -> list[dict[int, int]]:
        """Number of workers with something in each group's sum, by node."""
        counting_on: list[dict[int, int]] = []
        for workers in self._counting:
            on: dict[int, int] = {}
            for worker in workers:
                on[self._plan.node_of(worker)] = on.get(self._plan.node_of(worker), 0) + 1
            counting_on.append(on)
        return counting_on

    @cached_property
    def num_counting(self) -> tuple[int, ...]:
        """Number of workers with something in each group's sum."""
        return tuple(map(len, self._counting)) if self._plan.shadows else self._plan.num_owners

    def _counting_of(self, group: int) -> frozenset[WorkerId]:
        """Returns the workers with something in the group's sum. A shadow's part is empty, and is not sent."""
        if not self._plan.shadows:
            return frozenset(self._plan.owners_of[group])
        layers = set(self._plan.groups[group].layers)
        return frozenset(
            worker
            for worker in self._plan.owners_of[group]
            if not layers.isdisjoint(self._plan.layers_of.get(worker, ()))
        )

    def compute_s(self, worker: WorkerId, instruction: Instruction) -> float:
        """Returns seconds of a forward or (whole or split) backward; what is not counted has no weight gradients."""
        one = instruction
        return self.compute_of_s(worker, one.op, one.first_layer, one.end_layer, one.counted)

    def compute_of_s(
        self, worker: WorkerId, op: Op, first_layer: int, end_layer: int, counted: tuple[int, ...] = ()
    ) -> float:
        """Returns seconds of a forward or (whole or split) backward of these layers."""
        return self.computed[self.devices[worker], self.speeds[worker], op, first_layer, end_layer, counted]

    def message_s(self, sender: WorkerId, receiver: WorkerId, boundary: int) -> float:
        """Returns seconds of an activation or gradient over the boundary before layer `boundary`."""
        return self.link(sender, receiver).time_s(message_bytes(self._profile, boundary))

    def link(self, sender: WorkerId, receiver: WorkerId) -> LinkCost:
        """Returns the cost of the link between two workers."""
        one, other, network = self._plan.node_of(sender), self._plan.node_of(receiver), self._conditions.network
        return self._links.of(same_node=one == other) if network is None else network.link(self._links, one, other)

    def sum_times(self, worker: WorkerId, group: int) -> SumTimes:
        """Returns the seconds of the group's sum at one of its owners."""
        plan, devices, speed = self._plan, self.devices[worker], self.speeds[worker]
        if plan.devices_per_node == 1 and self._conditions.network is None:
            counts = not plan.shadows or worker in self._counting[group]
            return self._spread_sum(group, devices, self.num_counting[group] - counts, speed)
        slices = slices_in(plan, group, self._host_of)
        sent_bytes = part_bytes(plan.groups[group]) / devices
        counted_bytes = held_bytes(self._profile, plan.groups[group]).counted / devices
        a_byte = self._profile.step.sum_s_per_byte / speed
        counting = self._counting[group]
        alike = worker, slices, counting, sent_bytes, counted_bytes
        found = self._by_hosts.get(alike)
        if found is None:
            found = self._by_hosts[alike] = sum_by_hosts(
                slices, worker, counting, sent_bytes, counted_bytes, lambda other: self.link(other, worker), a_byte
            )
        return found

    def _spread_sum(self, group: int, devices: int, others: int, speed: float) -> SumTimes:
        found = self._spread.get((group, devices, others, speed))
        if found is None:
            found = self._spread[group, devices, others, speed] = spread_sum(
                self._plan.num_owners[group],
                others,
                part_bytes(self._plan.groups[group]) / devices,
                self._links.between_nodes,
                self._profile.step.sum_s_per_byte / speed,
            )
        return found

    def _host_of(self, worker: WorkerId) -> Hashable:
        """Returns in whose memory a worker's vectors can be read; where devices have their own, each is for itself."""
        if not self._profile.device.is_read_in_place:
            return worker
        node, network = self._plan.node_of(worker), self._conditions.network
        return node if network is None else network.hosts.get(node) or node

    def spread_sums(self, devices: int, groups: Sequence[int]) -> list[SumTimes]:
        """Returns the seconds of sums whose owners are on different nodes as fast as the profile says, and all count;
        on so many devices."""
        return [self._spread_sum(group, devices, self.num_counting[group] - 1, 1.0) for group in groups]

    def apply_s(self, worker: WorkerId) -> float:
        """Returns seconds of the worker's optimizer step."""
        plan = self._plan
        return self.apply_of_s(self.devices[worker], plan.groups_of[worker], plan.kept_of[worker]) / self.speeds[worker]

    def apply_of_s(self, devices: int, groups: Sequence[int], kept: Sequence[int]) -> float:
        """Returns seconds of the optimizer's step of the groups that are kept, and until the parameters of the others
        are here, on devices of a node as fast as the profile says."""
        sizes = self._plan.groups
        size = sum([sizes[group].size_bytes for group in kept])
        come = [sizes[group].size_bytes for group in groups if group not in kept] if len(kept) < len(groups) else ()
        seconds = size / devices * self._profile.step.apply_s_per_byte
        return seconds + sum(map(self._links.within_node.time_s, come))

    @property
    def vote_s(self) -> float:
        """Returns seconds from the last vote to the commit at a worker."""
        return self._profile.step.vote_s


def _device_counts(plan: Plan) -> set[int]:
    """Returns the different numbers of devices that workers of the plan drive."""
    if plan.shadows or not plan.is_apart:
        return set(plan.devices_of.values())
    return {count for pipeline, _ in plan.examples for count in pipeline.devices_of.values()}


def _is_spread(plan: Plan, pipeline: Pipeline) -> bool:
    """Returns whether no group is owned twice on one node of a pipeline that shares its nodes with no other."""
    seen: set[tuple[NodeId, int]] = set()
    for worker in pipeline.owned:
        own = {(plan.node_of(worker), group) for group in plan.groups_of[worker]}
        if not seen.isdisjoint(own):
            return False
        seen |= own
    return True
