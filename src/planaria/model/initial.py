"""Draws random numbers of initial weights: deterministic, on the CPU, and without a trace elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_RANDOM_FILLS = frozenset(
    {
        "normal_",
        "uniform_",
        "trunc_normal_",
        "xavier_normal_",
        "xavier_uniform_",
        "kaiming_normal_",
        "kaiming_uniform_",
        "orthogonal_",
    }
)


class SkipRandomFill(TorchFunctionMode):
    """Makes random in-place fills leave tensors as they are: modules are built quickly, and no random
    numbers are drawn. Constants and computed buffers are as ever. It holds for the calling thread only.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in _RANDOM_FILLS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def derive_seed(*parts: int | str) -> int:
    """Derives a 63-bit seed that depends on every part."""
    digest = hashlib.sha256("/".join(str(part) for part in parts).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Has torch's CPU random numbers follow `seed` inside, and go on as before outside. CUDA's are left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
