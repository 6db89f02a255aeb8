"""Callbacks: functions of the user's that hear of every record of a run, and may end it.

They live in the process that launches the run, in a thread of their own: training does not wait for them, and they see
records in order, each once. One that raises is not called again, and training goes on.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planaria.job.settings import Job
from planaria.job.users_code import import_function, look_in
from planaria.protocol.messages.records import AnyRecord, Note

_LOOK_S = 0.2
"""Seconds between two looks at whether callbacks are still to be waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """A run, as a callback sees it.

    Attributes:
        job: as it is trained.
        folder: the run's folder.
        stop: has the run finish its step, save and end, for the reason that it is given; `--resume` goes on from there.
    """

    job: Job
    folder: Path
    stop: Callable[[str], None]


Callback = Callable[[AnyRecord, LiveRun], Any]
"""Called with each record of a run; what it returns is of no account."""


class Callbacks:
    """An observer that has a thread call callbacks.

    Args:
        named: callbacks, by what messages call them.
        run: what each is given beside the record.
        is_hurried: whether the user wants the end at once: callbacks are not waited for then.
    """

    def __init__(self, named: Mapping[str, Callback], run: LiveRun, is_hurried: Callable[[], bool]) -> None:
        self._named = dict(named)
        self._run = run
        self._is_hurried = is_hurried
        self._records: queue.SimpleQueue[AnyRecord | None] = queue.SimpleQueue()
        self._notes: queue.SimpleQueue[Note] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._waiting = 0
        if named:
            threading.Thread(target=self._call_all, name="callbacks", daemon=True).start()

    def __call__(self, record: AnyRecord, time_s: float) -> None:
        if self._named:
            with self._changed:
                self._waiting += 1
            self._records.put(record)

    def notes(self) -> list[Note]:
        """Returns what has gone wrong since the last time."""
        return [self._notes.get() for _ in range(self._notes.qsize())]

    def catch_up(self) -> None:
        """Waits until all have seen every record that there is."""
        with self._changed:
            while self._waiting and not self._is_hurried():
                self._changed.wait(_LOOK_S)

    def close(self) -> None:
        """Ends the thread, once all have seen every record."""
        self.catch_up()
        self._records.put(None)
        for note in self.notes():
            print(note.text, file=sys.stderr)  # the run's last record is written already

    def _call_all(self) -> None:
        while (record := self._records.get()) is not None:
            for name, callback in list(self._named.items()):
                try:
                    callback(record, self._run)
                except BaseException as error:  # the user's function may raise anything, also SystemExit
                    del self._named[name]
                    self._notes.put(Note(level="warning", text=_raised(name, error, record)))
            with self._changed:
                self._waiting -= 1
                self._changed.notify_all()


def imported(references: Sequence[str], import_path: Path | None) -> dict[str, Callback]:
    """Returns callbacks given as "module:function", by what messages call them.

    Raises:
        UserError: one cannot be imported or called.
    """
    look_in(import_path)
    return {reference: import_function(reference, "run.callbacks") for reference in references}


def named(callbacks: Sequence[Callback]) -> dict[str, Callback]:
    """Returns callbacks given as objects, by what messages call them."""
    return {
        f"{getattr(callback, '__qualname__', type(callback).__qualname__)} (callbacks[{at}])": callback
        for at, callback in enumerate(callbacks)
    }


def _raised(name: str, error: BaseException, record: AnyRecord) -> str:
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    where = "" if last is None else f" in {last.tb_frame.f_code.co_filename}, line {last.tb_lineno}"
    return (
        f"the callback {name} failed on a {type(record).__name__} with {type(error).__name__}: {error}{where}. "
        "It is not called again; training goes on"
    )
