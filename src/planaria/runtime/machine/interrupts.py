"""Handles SIGINT, SIGTERM and SIGHUP in a process that people, or a batch system, want to end.

All three ask. Batch systems and terminals send them more than once, so only a second Ctrl-C insists.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from signal import Signals
from types import FrameType
from typing import Final

HEEDED: Final = frozenset({Signals.SIGINT, Signals.SIGTERM, Signals.SIGHUP})

_AGAIN_S: Final = 0.01
"""Until a signal comes again whose exception was dropped."""


class Interrupted(KeyboardInterrupt):
    """A signal came before there was anything to save."""

    def __init__(self, number: Signals) -> None:
        super().__init__(number.name)
        self.signal = number


@contextmanager
def interrupts(heed: Callable[[Signals, bool], None]) -> Iterator[None]:
    """Calls `heed` with each signal until the block ends, and whether it insists, as a second Ctrl-C does.

    Where `heed` raises Interrupted at a moment at which Python drops exceptions (in a finalizer, in a callback of an
    import or a fork), the signal comes once more, soon afterwards.

    In a thread other than the main one, signals are left as they are; so is SIGHUP where the process was told to ignore
    it (nohup).
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: set[Signals] = set()

    def handle(number: int, frame: FrameType | None) -> None:
        came = Signals(number)
        insists = came is Signals.SIGINT and came in asked
        asked.add(came)
        heed(came, insists)

    ignored = {Signals.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
    with _repeated(asked):
        previous = {number: signal.signal(number, handle) for number in HEEDED - ignored}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


@contextmanager
def _repeated(asked: set[Signals]) -> Iterator[None]:
    """Sends a signal again whose Interrupted was dropped, as if it had not been `asked` before."""
    before = sys.unraisablehook
    timers: list[threading.Timer] = []

    def repeat(dropped: sys.UnraisableHookArgs) -> None:
        if not isinstance(dropped.exc_value, Interrupted):
            before(dropped)
            return
        asked.discard(dropped.exc_value.signal)
        timers.append(threading.Timer(_AGAIN_S, os.kill, (os.getpid(), dropped.exc_value.signal)))
        timers[-1].daemon = True
        timers[-1].start()

    sys.unraisablehook = repeat
    try:
        yield
    finally:
        sys.unraisablehook = before
        for timer in timers:
            timer.cancel()


@contextmanager
def deaf(numbers: Collection[Signals] = HEEDED) -> Iterator[None]:
    """Shields processes started in the block from these signals: what starts them ends them. One that comes to this
    process meanwhile is heard afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)  # which processes inherit
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def raise_interrupted(number: Signals, insists: bool) -> None:
    """Raises Interrupted for a signal that comes while there is nothing to save.

    Raises:
        Interrupted: always.
    """
    raise Interrupted(number)
