"""Ties a process's life to its parent's. Imports nothing else of Planaria: what starts here starts quickly."""

from __future__ import annotations

import ctypes
import signal
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent() -> None:
    """Asks the kernel to kill this process when the thread that started it ends. A program that it becomes is killed
    too."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
