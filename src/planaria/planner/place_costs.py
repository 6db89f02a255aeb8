"""Costs of places: what layers cost a policy for which a stage's devices are one."""

from __future__ import annotations

import dataclasses

import msgspec

from planaria.plan.costs.model_profile import LayerCost, LayerTimes, ModelProfile
from planaria.plan.plan import PlanError
from planaria.plan.settings import PlannerSettings


def as_places(profile: ModelProfile, settings: PlannerSettings) -> tuple[ModelProfile, PlannerSettings]:
    """Returns costs and settings in which a place of `devices_per_stage` devices counts as one device.

    Raises:
        PlanError: the profile has no times of one device.
    """
    devices = settings.devices_per_stage
    if 1 not in profile.device_counts:
        raise PlanError(
            f"Stages of {devices} devices that take microbatches in turn need times of one device, and the profile "
            f"has those of {', '.join(map(str, profile.device_counts))}. Give another profile."
        )
    keeps = devices if settings.spreads_optimizer else 1
    layers = tuple(
        msgspec.structs.replace(
            layer,
            times=(_times_of_place(layer, settings),),
            gradient_bytes=_gradient_bytes(layer, keeps),
            optimizer_bytes=-(-layer.optimizer_bytes // keeps),
        )
        for layer in profile.layers
    )
    return msgspec.structs.replace(profile, layers=layers), dataclasses.replace(
        settings,
        devices_per_node=settings.devices_per_node // devices,
        devices_per_stage=1,
        num_cores=None if settings.num_cores is None else settings.num_cores / devices,
    )


def _times_of_place(layer: LayerCost, settings: PlannerSettings) -> LayerTimes:
    """Returns a layer's times on a place, as if it were one device: for each microbatch, of those that its devices have
    under way or share."""
    devices = settings.devices_per_stage
    if settings.share_microbatches:
        return msgspec.structs.replace(layer.shared_by(devices), num_devices=1)
    return layer.on(1).scaled(1 / devices)


def _gradient_bytes(layer: LayerCost, keeps: int) -> int:
    """Returns what a device holds of the layer's gradients if it keeps a part of its groups: all that it counts, and
    the sums of that part."""
    total = min(layer.gradient_bytes, layer.parameter_bytes)
    counted = layer.gradient_bytes - total
    return counted + -(-total // keeps) if counted else total
