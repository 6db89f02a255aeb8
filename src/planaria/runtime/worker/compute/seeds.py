"""Seeds as functions of what is computed, never of who computes it or when."""

from __future__ import annotations

import hashlib

import torch


def derive(*parts: int | str) -> int:
    """A 63-bit seed from numbers and names."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_layer(seed: int, step: int, microbatch: int, layer: int, device: torch.device) -> None:
    """Set torch's generator so that dropout of this layer is a function of its arguments alone."""
    value = derive("forward", seed, step, microbatch, layer)
    if device.type == "cuda":
        torch.cuda.manual_seed(value)
    else:
        torch.default_generator.manual_seed(value)
