"""The version of the numbers: runs of one version give the same bits for the same job, runs of two may not."""

from __future__ import annotations

from typing import Final

NUMERICS_VERSION: Final = 1
"""Raise it with every change after which a job would train to other bits: the order of samples or what is masked, the
rounding or order of sums, the optimizer, a schedule's rates, the layers into which a family's model is cut, the
initial weights, or a default in [model], [data] or [train]. A checkpoint of another version is not gone on from. What
checkpoints say of themselves and go on with, as the order of their samples, needs no other version."""
