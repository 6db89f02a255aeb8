"""Derives seeds from what is computed, never from which worker computes it or when."""

from __future__ import annotations

import hashlib

import torch


def derive(*parts: int | str) -> int:
    """Derives a 63-bit seed from numbers and names."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_layer(seed: int, step: int, microbatch: int, layer: int, device: torch.device) -> None:
    """Sets torch's generator so that dropout of this layer is a function of its arguments alone."""
    value = derive("forward", seed, step, microbatch, layer)
    if device.type == "cuda":
        torch.cuda.manual_seed(value)
    else:
        torch.default_generator.manual_seed(value)
