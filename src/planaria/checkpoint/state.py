"""Writes and reads a group's state as a safetensors file: parameters and the optimizer's values, by parameter name."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from safetensors.numpy import save
from safetensors.torch import load

from planaria.checkpoint.manifest import PARAMETER, Manifest, read_verified
from planaria.checkpoint.store import Place, store_at
from planaria.protocol.messages.from_worker import SavedGroup

GroupState = Mapping[str, Mapping[str, torch.Tensor]]
"""Values by kind (`PARAMETER`, or a name of `planaria.model.training.optimizer.Optimizer.states`) and parameter."""


def write_group(folder: Place, group: int, writer: str, state: GroupState) -> SavedGroup:
    """Writes one group's file, durably. Two writers of one group, by their names, never share a file."""
    tensors = {
        f"{kind}/{name}": tensor.detach().cpu().contiguous().numpy()  # a view: these may be gigabytes
        for kind, part in state.items()
        for name, tensor in part.items()
    }
    data = save(tensors)
    store = store_at(folder)
    name = f"group-{group:05d}-w{writer}{store.stamp}.safetensors"
    store.write(name, data)
    return SavedGroup(group=group, file=name, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def read_group(folder: Place, manifest: Manifest, group: int) -> GroupState:
    """Reads what `write_group` wrote.

    Raises:
        UserError: the file is missing, or is not what the manifest says.
    """
    entry = manifest.groups[group]
    tensors = load(read_verified(folder, entry))
    state: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        kind, _, name = key.partition("/")
        state.setdefault(kind, {})[name] = tensor
    return state


def read_parameters(folder: Place, manifest: Manifest) -> dict[str, torch.Tensor]:
    """Reads every parameter of the checkpoint by name."""
    parameters: dict[str, torch.Tensor] = {}
    for group in range(len(manifest.groups)):
        parameters.update(read_group(folder, manifest, group)[PARAMETER])
    return parameters
