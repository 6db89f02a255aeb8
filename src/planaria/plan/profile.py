"""The model profile: what each layer costs. Planner and estimator consume it; `planaria.profile` measures it."""

from __future__ import annotations

import msgspec

from planaria.plan.plan import Group


class LayerCost(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of one layer for one microbatch on one device.

    Attributes:
        name: the layer's name, as the model calls it.
        forward_s: seconds of its forward.
        backward_s: seconds of its whole backward (input and weight gradients, and recomputation if configured).
        parameter_bytes: bytes of its parameters, tied ones included.
        activation_bytes: bytes kept from its forward until its backward.
        output_bytes: bytes of what it passes on.
    """

    name: str
    forward_s: float
    backward_s: float
    parameter_bytes: int
    activation_bytes: int
    output_bytes: int


class LinkCost(msgspec.Struct, frozen=True, kw_only=True):
    """A message of n bytes takes latency_s + n / bandwidth_bytes_per_s."""

    latency_s: float
    bandwidth_bytes_per_s: float

    def time_s(self, size_bytes: int) -> float:
        return self.latency_s + size_bytes / self.bandwidth_bytes_per_s


class ModelProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Measured (or given) costs of a model on a kind of device.

    Attributes:
        layers: one entry a layer, in order.
        groups: the model's parameter groups (own ones first, in layer order; then tied ones).
        link: between workers.
        device: what it was measured on, for people and for the cache.
        fingerprint: hash of machine, shapes and model; a profile with another fingerprint is measured again.
        state_bytes_per_parameter_byte: parameters, gradients and optimizer state, over parameters.
    """

    layers: tuple[LayerCost, ...]
    groups: tuple[Group, ...]
    link: LinkCost
    device: str
    fingerprint: str
    state_bytes_per_parameter_byte: float

    @property
    def num_layers(self) -> int:
        return len(self.layers)
