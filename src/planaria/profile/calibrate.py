"""Corrects a profile by one measured number."""

from __future__ import annotations

import math

import msgspec

from planaria.job.errors import UserError
from planaria.plan.costs.model_profile import ModelProfile


def microbatch_s(profile: ModelProfile) -> float:
    """Returns seconds of forward and backward of one microbatch through all layers, each on one device."""
    return sum(times.forward_s + times.backward_s for times in (layer.on(1) for layer in profile.layers))


def calibrated(profile: ModelProfile, measured_s: float) -> ModelProfile:
    """Returns the profile with every layer's times scaled so that `microbatch_s` is what was measured.

    Args:
        profile: whose proportions are trusted; bytes, links and the step's own costs stay as they are.
        measured_s: seconds of forward and backward of one microbatch (of the profile's size) through the whole model,
            on one device; for a model that is cut, the sum over its stages.

    Raises:
        UserError: the number makes no sense.
    """
    if not math.isfinite(measured_s) or measured_s <= 0:
        raise UserError(
            f"a measured time of {measured_s} s cannot calibrate a profile. Give the seconds that forward and backward "
            "of one microbatch take, more than 0."
        )
    before_s = microbatch_s(profile)
    factor = measured_s / before_s

    layers = tuple(
        msgspec.structs.replace(layer, times=tuple(times.scaled(factor) for times in layer.times))
        for layer in profile.layers
    )
    said = f"times scaled by {factor:.6g}: one microbatch took {measured_s:g} s where {before_s:.6g} s was expected"
    provenance = f"{profile.provenance}; {said}" if profile.provenance else said
    return msgspec.structs.replace(profile, layers=layers, provenance=provenance, fingerprint="")
