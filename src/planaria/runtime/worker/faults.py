"""Injects faults on order (`--fail`): the node fails by itself, for real, at a kind of instruction."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Sequence

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

    def slowness(self, step: int) -> float:
        """Returns how many times longer than it could the node is to compute in this step."""
        slow = (fault for fault in self._faults if fault.kind is FaultKind.SLOW)
        return max((fault.factor for fault in slow if fault.slows(step)), default=1.0)

    def check(self, at: str, step: int) -> None:
        """Strikes if a fault is due. Called before every instruction."""
        for fault in self._faults:
            if fault.at == at and step >= fault.step:
                self._faults.remove(fault)
                self._strike(fault)
                return

    def _strike(self, fault: Fault) -> None:
        match fault.kind:
            case FaultKind.KILL:
                self._announce(time.monotonic())
                if fault.device >= 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                os.killpg(os.getpgid(0), signal.SIGKILL)
            case FaultKind.HANG:
                self._announce(time.monotonic())
                os.killpg(os.getpgid(0), signal.SIGSTOP)
            case FaultKind.FREEZE:
                self._announce(time.monotonic())
                threading.Event().wait()
            case FaultKind.MEMORY:
                self._announce(time.monotonic())
                _, most = resource.getrlimit(resource.RLIMIT_AS)
                resource.setrlimit(resource.RLIMIT_AS, (LACKING_BYTES, most))  # below what it has mapped already
                torch.empty(LACKING_BYTES, dtype=torch.uint8)  # the allocator refuses
            case FaultKind.SLOW:
                pass  # strikes at no instruction, see `slowness`
            case FaultKind.NOTICE:
                self._give_notice(fault.grace_s)
                timer = threading.Timer(fault.grace_s, os.killpg, (os.getpgid(0), signal.SIGKILL))
                timer.daemon = True
                timer.start()
