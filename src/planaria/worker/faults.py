"""Faults on order (`--fail`): the node kills itself, for real, at a kind of instruction."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence

from planaria.job.faults import Fault


class FaultInjector:
    """Kills the node's whole process group with SIGKILL when one of its faults is due.

    Args:
        faults: those of this node.
        announce: told the moment (monotonic seconds) just before, for measurements alone.
    """

    def __init__(self, faults: Sequence[Fault], announce: Callable[[float], None]) -> None:
        self._faults = tuple(faults)
        self._announce = announce

    def check(self, at: str, step: int) -> None:
        """Called before every instruction."""
        if not self._faults:
            return
        if any(fault.at == at and step >= fault.step for fault in self._faults):
            self._announce(time.monotonic())
            os.killpg(os.getpgid(0), signal.SIGKILL)
