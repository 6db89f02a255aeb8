"""Offload: what a shadow's forward keeps for its backward goes to the host's memory, and comes back when that runs.

Such a backward runs after a loss only (Bamboo, section 5.2), so a GPU's memory holds what every step needs. Parameters
stay on the device, for all microbatches, and so does each layer's output. `planaria.runtime.worker.compute.layers` asks
for this on a GPU alone, and not where activations are recomputed: there, nothing is kept that would be worth it.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.autograd.graph import saved_tensors_hooks

_Packed = tuple[torch.device, torch.Tensor]


def kept_on_host(parameters: Iterable[torch.Tensor]) -> saved_tensors_hooks:
    """A context: what autograd saves within it is kept in (pinned) host memory.

    Copies are made on the device's current stream, so nothing waits for them that comes later on it.

    Args:
        parameters: tensors that stay where they are, with all that shares their memory.
    """
    staying = {parameter.untyped_storage().data_ptr() for parameter in parameters}

    def pack(tensor: torch.Tensor) -> _Packed:
        if tensor.untyped_storage().data_ptr() in staying:
            return tensor.device, tensor.detach()
        host = torch.empty(tensor.size(), dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        return tensor.device, host.copy_(tensor, non_blocking=True)

    def unpack(packed: _Packed) -> torch.Tensor:
        device, tensor = packed
        return tensor.to(device, non_blocking=True)

    return saved_tensors_hooks(pack, unpack)
