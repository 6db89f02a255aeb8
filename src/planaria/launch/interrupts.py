"""What Ctrl-C and SIGTERM mean to a process that people, or a batch system, want to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts(heed: Callable[[int], None]) -> Iterator[None]:
    """Until the block ends, each of them calls `heed` with the count so far: the first asks, the second insists.

    In a thread other than the main one, signals are left as they are.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    count = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        heed(count)

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
