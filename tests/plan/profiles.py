"""Synthetic profiles and jobs, uniform or drawn by Hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from planaria.plan.costs.model_profile import DeviceKind, LayerCost, LayerTimes, LinkCost, Links, ModelProfile
from planaria.plan.plan import Group
from planaria.plan.settings import PlannerSettings


def layer_cost(
    *,
    forward_s: float,
    backward_s: float,
    name: str = "layer",
    parameter_bytes: int = 1 << 20,
    activation_bytes: int = 1,
    output_bytes: int = 1,
) -> LayerCost:
    """On one device; the backward's halves are equal, gradients and optimizer as AdamW's in float32."""
    return LayerCost(
        name=name,
        times=(LayerTimes(forward_s=forward_s, backward_input_s=backward_s / 2, backward_weight_s=backward_s / 2),),
        parameter_bytes=parameter_bytes,
        gradient_bytes=parameter_bytes,
        optimizer_bytes=2 * parameter_bytes,
        activation_bytes=activation_bytes,
        recompute_activation_bytes=activation_bytes // 2,
        output_bytes=output_bytes,
    )


def uniform_profile(
    num_layers: int,
    *,
    forward_s: float = 0.010,
    link: LinkCost | None = None,
    tied: bool = True,
    group_bytes: int = 400_000,
) -> ModelProfile:
    """Equal layers; `tied`: the first and the last share a group."""
    layer = layer_cost(
        name="block",
        forward_s=forward_s,
        backward_s=2 * forward_s,
        parameter_bytes=group_bytes,
        activation_bytes=50_000,
        output_bytes=10_000,
    )
    return _profile([layer] * num_layers, link or LinkCost(latency_s=1e-4, bandwidth_bytes_per_s=1e9), tied)


def _profile(layers: list[LayerCost], link: LinkCost, tied: bool) -> ModelProfile:
    groups = [Group(layers=(n,), size_bytes=layer.parameter_bytes) for n, layer in enumerate(layers)]
    if tied and len(layers) > 1:
        groups.append(Group(layers=(0, len(layers) - 1), size_bytes=123_456))
    return ModelProfile(
        layers=tuple(layers),
        groups=tuple(groups),
        links=Links(within_node=link, between_nodes=link),
        device=DeviceKind(name="synthetic"),
    )


@st.composite
def random_profiles(draw: st.DrawFn, min_layers: int = 1, max_layers: int = 8) -> ModelProfile:
    """Uneven layers, a slow or a fast link, with and without a tied group."""
    layers = [
        layer_cost(
            name=f"layer.{number}",
            forward_s=draw(st.integers(1, 20)) * 1e-3,
            backward_s=draw(st.integers(1, 40)) * 1e-3,
            parameter_bytes=draw(st.integers(1, 5)) * 100_000,
            activation_bytes=draw(st.integers(0, 5)) * 50_000,
            output_bytes=draw(st.integers(0, 3)) * 100_000,
        )
        for number in range(draw(st.integers(min_layers, max_layers)))
    ]
    link = LinkCost(latency_s=draw(st.sampled_from([0.0, 1e-4, 5e-3])), bandwidth_bytes_per_s=1e8)
    return _profile(layers, link, draw(st.booleans()))


@st.composite
def random_jobs(draw: st.DrawFn) -> tuple[ModelProfile, PlannerSettings]:
    """A profile, and settings whose f + 1 replicas fit."""
    profile = draw(random_profiles(min_layers=2))
    devices = draw(st.integers(1, min(2, profile.num_layers)))
    smallest = draw(st.integers(1, min(3, profile.num_layers // devices)))
    fault_tolerance = draw(st.integers(0, 2))
    least = smallest * (fault_tolerance + 1)
    num_nodes = draw(st.integers(least, least + 3))
    settings = PlannerSettings(
        num_microbatches=draw(st.integers(num_nodes, 12)),
        fault_tolerance=fault_tolerance,
        num_nodes=num_nodes,
        devices_per_node=devices,
        min_nodes=smallest,
    )
    return profile, settings
