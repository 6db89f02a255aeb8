"""The example's model for a run whose workers tell what they hold and have sent, whenever one begins a step.

Copied beside a job's file and imported by its workers. Each writes lines of JSON to a file of its own in that folder.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import struct
from pathlib import Path
from typing import Any

import torch
from layers import transformer
from torch import nn

from planaria.plan.plan import WorkerId
from planaria.protocol.worker.mail import Key, Kind
from planaria.runtime.worker.transport.frames import Loan
from planaria.runtime.worker.transport.sync import Sync
from planaria.runtime.worker.transport.transport import Transport

FOLDER = Path(__file__).parent
BYTES_SENT, BYTES_RETRANSMITTED = 200, 208
"""Offsets in the kernel's `struct tcp_info`."""

SEND = Transport.send


def send(
    transport: Transport, peer: WorkerId, key: Key, tensors: tuple[torch.Tensor, ...], loan: Loan | None = None
) -> None:
    """Sends as always; of a replica that moves, tells the bytes."""
    if key.kind == Kind.STATE:
        size_bytes = sum(tensor.nbytes for tensor in tensors)
        tell(move={"plan": key.epoch, "group": key.item, "to": peer, "bytes": size_bytes})
    SEND(transport, peer, key, tensors, loan)


def tell(**what: Any) -> None:
    with (FOLDER / f"told-{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps(what) + "\n")


def held(sync: Sync) -> dict[int, int]:
    """Returns for each group the bytes of its replica's tensors, and of what is counted."""
    found = {}
    for group, replica in sync._holdings.replicas.items():
        tensors = [*replica.state, replica.gradient, sync._holdings.accumulator(group).total]
        found[group] = sum(tensor.nbytes for tensor in tensors)
    return found


def sent() -> int:
    """Returns the bytes that this process' connections to other workers have sent, none twice."""
    coordinator = (FOLDER / "coordinator").read_text()
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as sock:
                host, _ = sock.getpeername()
                if host != coordinator:
                    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    (whole,) = struct.unpack_from("Q", info, BYTES_SENT)
                    (again,) = struct.unpack_from("Q", info, BYTES_RETRANSMITTED)
                    total += whole - again
        except (OSError, ValueError):
            continue  # closed meanwhile, or no connection
    return total


class Telling:
    """Tells once in each step, when the worker's first forward begins."""

    def __init__(self) -> None:
        self._sync: Sync | None = None
        self._step = 0

    def __call__(self, module: nn.Module, inputs: object) -> None:
        if self._sync is None:
            self._sync = next((found for found in gc.get_objects() if type(found) is Sync), None)
        if self._sync is not None and self._sync._step != self._step:
            self._step = self._sync._step
            tell(worker=self._sync._worker, step=self._step, held=held(self._sync), sent=sent())


TELLING = Telling()


def telling(**config: int) -> list[nn.Module]:
    Transport.send = send  # type: ignore[method-assign]
    layers = transformer(**config)
    for layer in layers:
        layer.register_forward_pre_hook(TELLING)
    return layers
