"""Writes and reads a group's state as a safetensors file: parameters and AdamW moments, by parameter name."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load, save

from planaria.checkpoint.manifest import (
    MOMENT_PREFIX,
    MOMENT_SQUARED_PREFIX,
    PARAMETER_PREFIX,
    Manifest,
    read_verified,
)
from planaria.protocol.messages.worker import SavedGroup

PREFIXES = (PARAMETER_PREFIX, MOMENT_PREFIX, MOMENT_SQUARED_PREFIX)

GroupState = tuple[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]]
"""Parameters, first moments, second moments, each by parameter name."""


def write_group(folder: Path, group: int, writer: str, state: GroupState) -> SavedGroup:
    """Writes one group's file, durably. Two writers of one group, by their names, never share a file."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        prefix + name: tensor.detach().cpu().contiguous().clone()
        for prefix, part in zip(PREFIXES, state, strict=True)
        for name, tensor in part.items()
    }
    data = save(tensors)
    name = f"group-{group:05d}-w{writer}.safetensors"
    partial = folder / (name + ".part")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(folder / name)
    except OSError:
        partial.unlink(missing_ok=True)  # on a full disk, half a file is in the way of the next one
        raise
    return SavedGroup(group=group, file=name, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def read_group(folder: Path, manifest: Manifest, group: int) -> GroupState:
    """Reads what `write_group` wrote.

    Raises:
        UserError: the file is missing, or is not what the manifest says.
    """
    entry = manifest.groups[group]
    tensors = load(read_verified(folder / entry.file, entry))
    parts = tuple(
        {key[len(prefix) :]: tensor for key, tensor in tensors.items() if key.startswith(prefix)} for prefix in PREFIXES
    )
    return parts[0], parts[1], parts[2]


def read_parameters(folder: Path, manifest: Manifest) -> dict[str, torch.Tensor]:
    """Reads every parameter of the checkpoint by name."""
    parameters: dict[str, torch.Tensor] = {}
    for group in range(len(manifest.groups)):
        parameters.update(read_group(folder, manifest, group)[0])
    return parameters
