"""Injects faults on order (`--fail`): the node fails by itself, for real, at a kind of instruction."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Sequence
from random import Random

import torch

from planaria.job.faults import Fault, FaultKind

LACKING_BYTES = 1 << 30
"""Bytes that a node that gets no more memory asks for next."""


class FaultInjector:
    """Strikes when one of the node's faults is due.

    Args:
        faults: those of this node.
        announce: told the moment (monotonic seconds) just before the node is gone, for measurements alone.
        give_notice: told how many seconds the node has left.
    """

    def __init__(
        self, faults: Sequence[Fault], announce: Callable[[float], None], give_notice: Callable[[float], None]
    ) -> None:
        self._faults = list(faults)
        self._announce = announce
        self._give_notice = give_notice
        self._corrupted: dict[Fault, int] = {}

    def slowness(self, step: int) -> float:
        """Returns how many times longer than it could the node is to compute in this step."""
        slow = (fault for fault in self._faults if fault.kind is FaultKind.SLOW)
        return max((fault.factor for fault in slow if fault.slows(step)), default=1.0)

    def check(self, at: str, step: int) -> None:
        """Strikes if a fault is due. Called before every instruction."""
        for fault in self._faults:
            if fault.at == at and step >= fault.step and fault.kind is not FaultKind.CORRUPT:
                self._faults.remove(fault)
                self._strike(fault)
                return

    def corrupt(self, at: str, step: int, tensors: Callable[[], Sequence[torch.Tensor]]) -> None:
        """Flips bits of these tensors if that is due. Which ones depends on the fault and the step alone."""
        for fault in self._faults:
            if fault.kind is not FaultKind.CORRUPT or fault.at != at or not self._is_due(fault, step):
                continue
            struck = [tensor for tensor in tensors() if tensor.numel()]
            if struck:
                self._corrupted[fault] = step
                self._announce(time.monotonic())
                flip(struck, Random(f"{fault} {step}"), fault.bits)

    def _is_due(self, fault: Fault, step: int) -> bool:
        last = self._corrupted.get(fault)
        return step >= fault.step and (last is None or (fault.repeats and step > last))

    def _strike(self, fault: Fault) -> None:
        match fault.kind:
            case FaultKind.KILL:
                self._announce(time.monotonic())
                _signal(fault, signal.SIGKILL)
            case FaultKind.HANG:
                self._announce(time.monotonic())
                _signal(fault, signal.SIGSTOP)
            case FaultKind.FREEZE:
                self._announce(time.monotonic())
                threading.Event().wait()
            case FaultKind.MEMORY:
                self._announce(time.monotonic())
                _, most = resource.getrlimit(resource.RLIMIT_AS)
                resource.setrlimit(resource.RLIMIT_AS, (LACKING_BYTES, most))  # below what it has mapped already
                torch.empty(LACKING_BYTES, dtype=torch.uint8)  # the allocator refuses
            case FaultKind.SLOW | FaultKind.CORRUPT:
                pass  # strike at no instruction, see `slowness` and `corrupt`
            case FaultKind.NOTICE:
                self._give_notice(fault.grace_s)
                timer = threading.Timer(fault.grace_s, os.killpg, (os.getpgid(0), signal.SIGKILL))
                timer.daemon = True
                timer.start()


def _signal(fault: Fault, number: signal.Signals) -> None:
    """Sends a signal to all processes of this node, or to this one where the fault is of its device alone."""
    if fault.device >= 0:
        os.kill(os.getpid(), number)
    else:
        os.killpg(os.getpgid(0), number)


def flip(tensors: Sequence[torch.Tensor], draw: Random, bits: int) -> None:
    """Flips so many random bits of contiguous tensors, in place."""
    words = [tensor.data.view(-1).view(torch.uint8) for tensor in tensors]  # unseen by autograd too
    for _ in range(bits):
        vector = draw.choices(words, [len(each) for each in words])[0]
        vector[draw.randrange(len(vector))] ^= 1 << draw.randrange(8)
