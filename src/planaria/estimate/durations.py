"""Durations: how long each instruction of a plan's programs takes by itself, in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache

from planaria.estimate.conditions import Conditions
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.plan import NodeId, Pipeline, Plan, PlanError, WorkerId
from planaria.plan.program.instructions import Instruction, Op

MOST_COMPUTED = 1 << 16
"""Forwards and backwards whose durations are remembered; then all are forgotten."""


class Computed(dict[tuple[int, float, Op, int, int, tuple[int, ...]], float]):
    """Durations under one profile, whatever the plan: seconds of a forward or backward on so many devices of this
    speed, of these layers (the first one, and the end), of which so many are counted."""

    def __init__(self, profile: ModelProfile) -> None:
        self._times = {count: [layer.on(count) for layer in profile.layers] for count in profile.device_counts}

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
def _computed(profile: ModelProfile) -> Computed:
    return Computed(profile)


class Durations:
    """Durations of one plan's instructions under one profile.

    A worker drives the devices of its widest stage, all of one node. Each holds an equal share of every group that the
    worker owns; they read, sum and apply their shares side by side. A message between two stages is whole.

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
        self.computed = _computed(profile)

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
        """Whether no group is counted twice on one node, so that all who own the same take equally long to read it."""
        plan, per_node = self._plan, self._plan.devices_per_node
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
        same_node = self._plan.node_of(sender) == self._plan.node_of(receiver)
        return self._links.of(same_node=same_node).time_s(self._profile.layers[boundary - 1].output_bytes)

    def read_s(self, worker: WorkerId, group: int) -> float:
        """Returns seconds of reading the group's gradients of all its other owners, one after another."""
        plan = self._plan
        if plan.devices_per_node == 1:
            own = group in plan.groups_of.get(worker, ()) if not plan.shadows else worker in self._counting[group]
            return self.read_of_s(self.devices[worker], group, 0, self.num_counting[group] - own)
        own = worker in self._counting[group]
        near = self._counting_on[group].get(plan.node_of(worker), 0) - own
        return self.read_of_s(self.devices[worker], group, near, len(self._counting[group]) - own - near)

    def read_of_s(self, devices: int, group: int, near: int, far: int) -> float:
        """Returns seconds of reading the group's gradients of so many others, near and far, on so many devices."""
        share = self._plan.groups[group].size_bytes / devices
        seconds = 0.0
        for count, link in ((near, self._links.within_node), (far, self._links.between_nodes)):
            if count:
                seconds += count * (link.latency_s + share / link.bandwidth_bytes_per_s)
        return seconds

    def sum_s(self, worker: WorkerId, group: int) -> float:
        """Returns seconds of adding what was read of the group."""
        return self.sum_of_s(self.devices[worker], group) / self.speeds[worker]

    def sum_of_s(self, devices: int, group: int) -> float:
        """Returns seconds of adding the group on so many devices of a node as fast as the profile says."""
        others = self.num_counting[group] - 1
        share = self._plan.groups[group].size_bytes / devices
        return others * share * self._profile.step.sum_s_per_byte

    def sums_on(self, devices: int) -> tuple[list[float], list[float]]:
        """Returns for each group seconds of reading it from all its other owners, none of them near, and of adding what
        was read; on so many devices of a node as fast as the profile says."""
        link, a_byte = self._links.between_nodes, self._profile.step.sum_s_per_byte
        shares = [group.size_bytes / devices for group in self._plan.groups]
        others = [count - 1 for count in self.num_counting]
        pairs = list(zip(others, shares, strict=True))
        return (
            [count * (link.latency_s + share / link.bandwidth_bytes_per_s) for count, share in pairs],
            [count * share * a_byte for count, share in pairs],
        )

    def apply_s(self, worker: WorkerId) -> float:
        """Returns seconds of the worker's optimizer step."""
        return self.apply_of_s(self.devices[worker], self._plan.groups_of[worker]) / self.speeds[worker]

    def apply_of_s(self, devices: int, groups: Sequence[int]) -> float:
        """Returns seconds of the optimizer's step of these groups, on devices of a node as fast as the profile says."""
        size = sum([self._plan.groups[group].size_bytes for group in groups])
        return size / devices * self._profile.step.apply_s_per_byte

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
