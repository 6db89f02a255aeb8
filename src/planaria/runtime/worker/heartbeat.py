"""Tells the coordinator what the main thread does, and how far it is: a thread that beats."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from planaria.plan.plan import WorkerId
from planaria.protocol.messages.from_worker import (
    BEAT_S,
    MAX_DOING_LENGTH,
    Activity,
    Alive,
    FromWorker,
    Notice,
    Pulse,
    beat_every_s,
)
from planaria.runtime.thresholds import MEMORY_TOLD_EVERY_S


class Heartbeat:
    """Keeps what the main thread says of itself, and has a thread pass it on.

    The main thread writes single attributes and never waits; the heartbeat reads them.

    Args:
        send: sends a message to the coordinator.
        worked: seconds that the main thread has worked in all; asked by the heartbeat's thread.
        held: bytes of memory that the process holds; asked likewise, now and then.

    Attributes:
        describe: says for people what the main thread does; called likewise. IndexError: it is between two things.
    """

    def __init__(
        self,
        send: Callable[[FromWorker], None],
        worked: Callable[[], float] = lambda: 0.0,
        held: Callable[[], int] = lambda: 0,
    ) -> None:
        self.describe: Callable[[], str] = lambda: "while the model is loaded"
        self._send = send
        self._worked = worked
        self._held = held
        self._notice: Notice | None = None
        self._activity = Activity.BUSY
        self._progress = 0
        self._waits_for = -1
        self._ended = threading.Event()
        self._every_s = BEAT_S

    def start(self) -> None:
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def close(self) -> None:
        self._ended.set()

    def give_notice(self, grace_s: float, cause: str) -> None:
        """Announces with the next beat that the node will go away. Safe in a signal handler."""
        self._notice = Notice(grace_s=grace_s, cause=cause)

    def pace(self, num_workers: int) -> None:
        """Beats as often as one of so many workers does."""
        self._every_s = beat_every_s(num_workers)

    def advance(self) -> None:
        """Notes that something is finished."""
        self._progress += 1

    @contextmanager
    def during(self, activity: Activity, waits_for: WorkerId | None = None) -> Iterator[None]:
        """Notes what the main thread does until the block ends."""
        before = self._activity, self._waits_for
        self._waits_for = -1 if waits_for is None else waits_for
        self._activity = activity
        try:
            yield
        finally:
            self._activity, self._waits_for = before
            self._progress += 1

    @property
    def pulse(self) -> Pulse:
        return Pulse(activity=self._activity, progress=self._progress, waits_for=self._waits_for)

    def _beat(self) -> None:
        doing, asks_again_s = "", 0.0
        while not self._ended.wait(self._every_s):
            if self._notice is not None:
                self._send(self._notice)
                self._notice = None
            with contextlib.suppress(IndexError):
                doing = self.describe()[:MAX_DOING_LENGTH]
            held_bytes, now = 0, time.monotonic()
            if now >= asks_again_s:
                held_bytes, asks_again_s = self._held(), now + MEMORY_TOLD_EVERY_S
            self._send(Alive(pulse=self.pulse, worked_s=self._worked(), doing=doing, held_bytes=held_bytes))


def processor_time() -> Callable[[], float]:
    """Returns a function by which any thread reads the calling thread's processor time in seconds."""
    clock = time.pthread_getcpuclockid(threading.get_ident())
    return lambda: time.clock_gettime(clock)
