"""A thread for each view, behind a queue that is bounded: what a view raises, or its stalls, change nothing else."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from planaria.protocol.messages.records import AnyRecord, Note, RunEnded
from planaria.runtime.observers.thresholds import VIEW_BATCH, VIEW_END_S, VIEW_LOOK_S, VIEW_PAUSE_S, VIEW_QUEUE
from planaria.runtime.observers.view import TimedRecord, View, ViewedRun


class ViewThread:
    """A view in a thread of its own, which starts with the first record.

    Args:
        view: what shows the run; only its thread calls it.
        run: that is shown.
    """

    def __init__(self, view: View, run: ViewedRun) -> None:
        self._view = view
        self._run = run
        self._changed = threading.Condition()
        self._waiting: deque[TimedRecord] = deque()
        self._is_closing = False
        self._is_over = False
        self._was_behind = False
        self._complaints: deque[str] = deque()
        self._thread: threading.Thread | None = None

    @property
    def name(self) -> str:
        """What messages call the view."""
        return self._view.name

    def put(self, record: AnyRecord, time_s: float) -> None:
        """Leaves a record to the thread. Never waits: a view that is too far behind misses records, but the last."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"view {self.name}", daemon=True)
            self._thread.start()
        with self._changed:
            if self._is_over:
                return
            if len(self._waiting) >= VIEW_QUEUE and not isinstance(record, RunEnded):
                if not self._was_behind:
                    self._complain(f"is {VIEW_QUEUE} records behind: it misses what comes until it has caught up")
                self._was_behind = True
                return
            self._waiting.append((record, time_s))
            if len(self._waiting) == 1:
                self._changed.notify_all()

    def complaints(self) -> list[str]:
        """Returns what has gone wrong since the last time, a line each."""
        with self._changed:
            told = list(self._complaints)
            self._complaints.clear()
            return told

    def begin_to_close(self) -> None:
        """Asks the thread to show what is left, and to end."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()

    def has_ended(self, within_s: float) -> bool:
        """Waits for the thread's end, and returns whether it came."""
        if self._thread is not None:
            self._thread.join(within_s)
        return self._thread is None or not self._thread.is_alive()

    def _work(self) -> None:
        try:
            self._view.start(self._run)
            while batch := self._next():
                for line in self._view.show(batch):
                    self._complain(line)
        except BaseException as error:  # whatever a library raises, also SystemExit, is its own affair
            self._complain(f"failed: {_first_line(error)}. Nothing more is shown there; training goes on")
        with self._changed:
            self._is_over = True
            self._waiting.clear()
        try:
            self._view.close()
        except BaseException as error:
            self._complain(f"could not be closed: {_first_line(error)}")

    def _next(self) -> list[TimedRecord]:
        """Waits for records; gathers some, so that seldom something is written; returns none at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closing)
            self._changed.wait_for(lambda: self._is_closing or len(self._waiting) >= VIEW_BATCH, VIEW_PAUSE_S)
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), VIEW_BATCH))]

    def _complain(self, text: str) -> None:
        with self._changed:
            self._complaints.append(f"{self.name} {text}")


class Views:
    """An observer that shows a run in views.

    Args:
        views: each gets a thread.
        run: that is shown.
        is_hurried: whether the user wants the end at once: views are not waited for then.
    """

    def __init__(self, views: Sequence[View], run: ViewedRun, is_hurried: Callable[[], bool]) -> None:
        self._threads = [ViewThread(view, run) for view in views]
        self._is_hurried = is_hurried

    def __call__(self, record: AnyRecord, time_s: float) -> None:
        for thread in self._threads:
            thread.put(record, time_s)

    def notes(self) -> list[Note]:
        """Returns what has gone wrong since the last time."""
        return [Note(level="warning", text=text) for thread in self._threads for text in thread.complaints()]

    def close(self) -> None:
        """Ends the threads once they have shown every record; who takes too long is left behind."""
        for thread in self._threads:
            thread.begin_to_close()
        deadline = time.monotonic() + VIEW_END_S
        for thread in self._threads:
            while not thread.has_ended(VIEW_LOOK_S):
                if self._is_hurried() or time.monotonic() > deadline:
                    _print(f"{thread.name} has not shown all by the end of the run, and is left behind")
                    break
        for note in self.notes():
            _print(note.text)  # the run's last record is written already


def _print(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody reads it, or it is closed
        print(text, file=sys.stderr)


def _first_line(error: BaseException) -> str:
    said = re.sub(r"//[^/@\s]+@", "//", str(error)).strip().splitlines()  # names and passwords of URLs
    return f"{type(error).__name__}: {said[0][:300].rstrip('.')}" if said else type(error).__name__
