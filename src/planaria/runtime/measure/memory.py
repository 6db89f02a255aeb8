"""Reads the memory of a device and of this process, as the system counts it."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

import torch

_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ ...(?P<shared>[ps]) \S+ \S+ \S+ *(?P<file>.*)$")


def device_bytes(device: torch.device) -> int:
    """Returns the device's memory in bytes; 0 for the CPU, whose memory all processes of the machine share."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return 0


def held_bytes(device: torch.device) -> int:
    """Returns the bytes that this process holds of the device, whether torch uses them now or keeps them for later."""
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else own_bytes(os.getpid())


def own_bytes(pid: int) -> int:
    """Returns what a process adds to the memory its machine holds: its own pages, and its share of memory files.

    Pages of files and of the process that it was forked from are not its own. 0 where the kernel does not tell.

    Raises:
        ProcessLookupError, FileNotFoundError: it is gone.
    """
    if not Path("/proc/self/smaps").exists():
        return 0
    counts = "Private_Dirty"
    total = 0
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        mapping = _MAPPING.match(line)
        if mapping is not None:
            is_memory = "/memfd:" in mapping["file"]
            # A file's shared pages are the kernel's to drop; a memory file has no other place.
            counts = "Pss" if is_memory else "Private_Dirty" if mapping["shared"] == "p" else ""
            continue
        name, _, value = line.partition(":")
        if name == counts:
            total += int(value.split()[0])
    return 1024 * total


def give_back(device: torch.device) -> bool:
    """Has the allocator give back what it keeps for later; returns whether it can be told to."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return True
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return False
    trim(0)
    return True


def process_bytes(device: torch.device) -> int:
    """Returns what this process takes of the device's memory beside tensors; there should be none when this is asked.

    On CUDA that is the context, as long as no other process uses the device.
    """
    give_back(device)
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return max(0, int(total - free - torch.cuda.memory_reserved(device)))
    return own_bytes(os.getpid())
