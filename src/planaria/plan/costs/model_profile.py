"""The model profile: what each layer costs. Planner and estimator consume it; `planaria.profile` makes it.

Its JSON is a public format, see docs/reference/profile-format.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

import msgspec

from planaria.plan.plan import Group

FORMAT = 1
"""Version of the profile's JSON format."""


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of a profile's parts; unknown fields are refused."""


class LayerTimes(Part, frozen=True, kw_only=True):
    """Seconds of one layer for one microbatch that `num_devices` devices of one node share, with what they exchange.

    Attributes:
        num_devices: that share the stage.
        forward_s: seconds of the forward.
        backward_input_s: the part of the backward that gives the gradient of the layer's input.
        backward_weight_s: the part that gives the gradients of its parameters.
        split_s: by how much longer the two parts take apart than the backward that does both at once.
    """

    num_devices: int = 1
    forward_s: float
    backward_input_s: float
    backward_weight_s: float
    split_s: float = 0.0

    @property
    def backward_s(self) -> float:
        return self.backward_input_s + self.backward_weight_s

    def scaled(self, factor: float) -> LayerTimes:
        """Returns times that are so many times as long."""
        return msgspec.structs.replace(
            self,
            forward_s=factor * self.forward_s,
            backward_input_s=factor * self.backward_input_s,
            backward_weight_s=factor * self.backward_weight_s,
            split_s=factor * self.split_s,
        )


class LayerCost(Part, frozen=True, kw_only=True):
    """Costs of one layer. Bytes are of the whole layer; a stage of d devices holds 1/d of them on each.

    Attributes:
        name: the layer's name, as the model calls it.
        times: by number of devices, ascending; every layer of a profile has the same numbers.
        parameter_bytes: its parameters that are trained, tied ones included.
        gradient_bytes: its gradients: the sum, as large as the parameters, and the rest for what is counted.
        optimizer_bytes: the optimizer's state.
        activation_bytes: kept for one microbatch from its forward until its backward.
        recompute_activation_bytes: kept instead where the backward recomputes the forward.
        output_bytes: what it passes on.
        workspace_bytes: needed beside all that while the layer runs: gradients before they are added, what kernels
            allocate, and the allocator's holes.
        copy_bytes: copies of weights in bfloat16, made once a step for all its microbatches.
        frozen_bytes: its parameters that are not trained: whoever runs the layer holds them, and nothing else of them.
    """

    name: str
    times: tuple[LayerTimes, ...]
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    recompute_activation_bytes: int
    output_bytes: int
    workspace_bytes: int = 0
    copy_bytes: int = 0
    frozen_bytes: int = 0

    def on(self, num_devices: int) -> LayerTimes:
        """Returns the layer's times on a stage of `num_devices` devices.

        Raises:
            KeyError: they are not in the profile.
        """
        for times in self.times:
            if times.num_devices == num_devices:
                return times
        raise KeyError(num_devices)

    def shared_by(self, num_devices: int) -> LayerTimes:
        """Returns the layer's times on each of so many devices that share a microbatch; where they are not in the
        profile, its part of those on one."""
        known = (times for times in self.times if times.num_devices == num_devices)
        return next(known, self.on(1).scaled(1 / num_devices))

    @property
    def constant_bytes(self) -> int:
        """Bytes of what whoever runs the layer holds beside the state: frozen parameters and copies of weights."""
        return self.copy_bytes + self.frozen_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of the layer's parameters, gradients and optimizer state."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes


class LinkCost(Part, frozen=True, kw_only=True):
    """Cost of a link: a message of n bytes takes latency_s + n / bandwidth_bytes_per_s."""

    latency_s: float
    bandwidth_bytes_per_s: float

    def time_s(self, size_bytes: int) -> float:
        return self.latency_s + size_bytes / self.bandwidth_bytes_per_s


class Links(Part, frozen=True, kw_only=True, omit_defaults=True):
    """Costs of the links between two stages, or two owners of a layer, by class.

    Attributes:
        within_node: between devices of a node, or nodes of one host.
        between_nodes: between nodes of one zone, and wherever no zones are known.
        across_zones: between nodes of two zones; None: as within one.
    """

    within_node: LinkCost
    between_nodes: LinkCost
    across_zones: LinkCost | None = None

    @property
    def classes(self) -> dict[str, LinkCost]:
        """The classes that are told apart, by name."""
        named = {"within_node": self.within_node, "between_nodes": self.between_nodes}
        return named if self.across_zones is None else {**named, "across_zones": self.across_zones}

    def of(self, *, same_node: bool) -> LinkCost:
        return self.within_node if same_node else self.between_nodes


class DeviceKind(Part, frozen=True, kw_only=True):
    """The kind of device that the costs were measured on.

    Attributes:
        name: for people and for the cache.
        memory_bytes: of one device; 0: not known, nothing is checked against it.
        process_bytes: of them, taken by a process that trains nothing yet.
        allocator_overhead: what the allocator holds for activations beyond what it is asked for, as a share of it,
            where forwards and backwards alternate.
        is_host: it computes in the host's memory, so there is no other to move anything to.
        shares: it has memory of its own, which other devices of the host read in place.
    """

    name: str
    memory_bytes: int = 0
    process_bytes: int = 0
    allocator_overhead: float = 0.0
    is_host: bool = False
    shares: bool = False

    @property
    def is_read_in_place(self) -> bool:
        """Whether owners on one host read each other's gradients where they lie."""
        return self.is_host or self.shares


class StepCosts(Part, frozen=True, kw_only=True):
    """Costs of a step beside its layers.

    Attributes:
        vote_s: from the last vote to the commit at a worker.
        apply_s_per_byte: the optimizer's step and the digests by which replicas are compared, per byte of parameters
            that a device owns.
        sum_s_per_byte: computing the sum of one more owner's gradients, per byte of parameters.
    """

    vote_s: float = 0.0
    apply_s_per_byte: float = 0.0
    sum_s_per_byte: float = 0.0


class Contention(Part, frozen=True, kw_only=True):
    """What devices of one host that are at work at a time cost each other: memory's bandwidth and caches, not cores.

    Attributes:
        num_devices: that are at work at a time, 2 or more.
        compute: a forward or backward takes so many times as long as on one device alone.
        update: sums and the optimizer's step likewise.
    """

    num_devices: int
    compute: float
    update: float


class ModelProfile(Part, frozen=True, kw_only=True, dict=True, cache_hash=True):
    """Measured (or given) costs of a model on a kind of device.

    Attributes:
        format: version of the format.
        name: of the model.
        microbatch_size: samples in the microbatch that the times and bytes are for.
        layers: one entry a layer, in order.
        groups: the model's parameter groups (own ones first, in layer order; then tied ones). Left out in a file:
            each layer with parameters is one.
        links: between workers.
        device: what the costs are for.
        step: what a step costs beside its layers.
        contention: by number of devices, ascending; all other costs are those of one device alone. Left out: devices
            of one host cost each other nothing, as GPUs.
        provenance: where the numbers come from, for people.
        fingerprint: of a measured profile, hash of machine, shapes and model; with another one it is measured again.
    """

    format: int = FORMAT
    name: str = ""
    microbatch_size: int = 1
    layers: tuple[LayerCost, ...]
    groups: tuple[Group, ...] = ()
    links: Links
    device: DeviceKind
    step: StepCosts = StepCosts()
    contention: tuple[Contention, ...] = ()
    provenance: str = ""
    fingerprint: str = ""

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @cached_property
    def device_counts(self) -> tuple[int, ...]:
        """The numbers of devices that may share a microbatch, ascending."""
        return tuple(times.num_devices for times in self.layers[0].times)

    def recomputed(self) -> ModelProfile:
        """Returns the profile of a run whose backwards recompute the forward (activation checkpointing by layer)."""
        return msgspec.structs.replace(self, layers=tuple(_recomputed(layer) for layer in self.layers))

    def contended(self, num_devices: int) -> ModelProfile:
        """Returns the profile of a host of which so many devices are at work at a time. Between two numbers that were
        measured costs grow evenly; beyond the last they are its own."""
        if not self.contention or num_devices < 2:
            return self
        found = _at(self.contention, num_devices)
        layers = tuple(
            msgspec.structs.replace(layer, times=tuple(times.scaled(found.compute) for times in layer.times))
            for layer in self.layers
        )
        step = msgspec.structs.replace(
            self.step,
            apply_s_per_byte=found.update * self.step.apply_s_per_byte,
            sum_s_per_byte=found.update * self.step.sum_s_per_byte,
        )
        return msgspec.structs.replace(self, layers=layers, step=step, contention=())


def _recomputed(layer: LayerCost) -> LayerCost:
    return msgspec.structs.replace(
        layer,
        times=tuple(
            msgspec.structs.replace(times, backward_input_s=times.backward_input_s + times.forward_s)
            for times in layer.times
        ),
        activation_bytes=layer.recompute_activation_bytes,
        workspace_bytes=layer.workspace_bytes + layer.activation_bytes,
    )


def _at(measured: Sequence[Contention], num_devices: int) -> Contention:
    """Returns what so many devices cost each other, of what was measured of other numbers."""
    for low, high in pairwise((Contention(num_devices=1, compute=1.0, update=1.0), *measured)):
        if num_devices <= high.num_devices:
            share = (num_devices - low.num_devices) / (high.num_devices - low.num_devices)
            return Contention(
                num_devices=num_devices,
                compute=low.compute + share * (high.compute - low.compute),
                update=low.update + share * (high.update - low.update),
            )
    return measured[-1]


def device_counts(devices_per_node: int) -> tuple[int, ...]:
    """Returns the numbers of a node's devices of which a profile has costs: powers of two, and all of them."""
    counts = [1]
    while 2 * counts[-1] <= devices_per_node:
        counts.append(2 * counts[-1])
    return tuple(sorted({*counts, max(devices_per_node, 1)}))
