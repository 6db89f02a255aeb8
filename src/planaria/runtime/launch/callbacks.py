"""Callbacks: functions of the user's that hear of every record of a run, and may end it.

They live in the process that launches the run, in a thread of their own: training does not wait for them, and they see
records in order, each once. One that raises is not called again, and training goes on.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planaria.job.settings import Job
from planaria.job.users_code import import_function, look_in
from planaria.protocol.messages.records import AnyRecord, CheckpointSaved, Note

_LOOK_S = 0.2
"""Seconds between two looks at whether callbacks are still to be waited for."""


_TOLD_AFTER_S = 5.0
"""Seconds after which it is told which callback is waited for."""


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
        self._at = ""
        """What is being called, and on what."""
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

    def catch_up(self, tell: Callable[[str], None]) -> None:
        """Waits until all have seen every record that there is; after some seconds, tells what is waited for."""
        told_at: float | None = time.monotonic() + _TOLD_AFTER_S
        with self._changed:
            while self._waiting and not self._is_hurried():
                self._changed.wait(_LOOK_S)
                if told_at is not None and time.monotonic() >= told_at and self._at:
                    told_at = None
                    tell(f"the end waits for the callback {self._at}; Ctrl-C twice ends the run without it")

    def close(self) -> None:
        """Ends the thread, once all have seen every record."""
        self.catch_up(_print)  # the run's last record is written already
        self._records.put(None)
        for note in self.notes():
            _print(note.text)

    def _call_all(self) -> None:
        while (record := self._records.get()) is not None:
            for name, callback in list(self._named.items()):
                self._at = f"{name}, at a {type(record).__name__}"
                try:
                    callback(record, self._run)
                except BaseException as error:  # the user's function may raise anything, also SystemExit
                    if isinstance(record, CheckpointSaved) and not Path(record.folder).exists():
                        self._notes.put(Note(level="warning", text=_removed(name, record, self._run.job)))
                        continue
                    del self._named[name]
                    self._notes.put(Note(level="warning", text=_raised(name, error, record)))
            self._at = ""
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


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _removed(name: str, record: CheckpointSaved, job: Job) -> str:
    return (
        f"the callback {name} was not done with the checkpoint of step {record.step} when newer ones took its place. "
        f"Set run.keep_checkpoints to more than {job.run.keep_checkpoints}, or run.checkpoint_every to more steps; the "
        "callback is called again"
    )


def _raised(name: str, error: BaseException, record: AnyRecord) -> str:
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    where = "" if last is None else f" in {last.tb_frame.f_code.co_filename}, line {last.tb_lineno}"
    return (
        f"the callback {name} failed on a {type(record).__name__} with {type(error).__name__}: {error}{where}. "
        "It is not called again; training goes on"
    )
