"""What is worth a message, in which words, and how often."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from planaria.plan.quantities import count
from planaria.protocol.messages.records import AnyRecord, Note, NoteSubject, RunEnded, RunStatus, Waiting
from planaria.runtime.observers.figures import ending
from planaria.runtime.observers.thresholds import ALERT_EVERY_S
from planaria.runtime.observers.view import TimedRecord, ViewedRun
from planaria.runtime.run_folder.sentences import sentence


class AlertKind(enum.StrEnum):
    """What somebody is told of."""

    DEGRADED = "degraded"
    WAITING = "waiting"
    EXHAUSTED = "exhausted"
    CHECKPOINT_FAILED = "checkpoint failed"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A message.

    Attributes:
        kind: what it is about.
        run: name of the run.
        folder: the run's folder.
        text: one line, with the run's name.
    """

    kind: AlertKind
    run: str
    folder: Path
    text: str


class NotDelivered(Exception):
    """An alert was not taken. The message says why, without anything secret."""


class Deliver(Protocol):
    """Delivers alerts.

    Attributes:
        name: by which messages call it.
        rests_s: seconds of rest before each attempt.
    """

    name: str
    rests_s: tuple[float, ...]

    def __call__(self, alert: Alert) -> None:
        """Delivers an alert. Raises NotDelivered; a later one is tried again."""


class Alerts:
    """A view that sends messages: seldom, and each a few times until it is taken.

    Args:
        deliver: who gets them.
        clock: seconds.
        rest: waits for so many seconds.
    """

    def __init__(
        self,
        deliver: Deliver,
        clock: Callable[[], float] = time.monotonic,
        rest: Callable[[float], object] = time.sleep,
    ) -> None:
        self.name = deliver.name
        self._deliver = deliver
        self._clock = clock
        self._rest = rest
        self._run: ViewedRun | None = None
        self._sent_s: dict[AlertKind, float] = {}
        self._held_back: dict[AlertKind, int] = {}
        self._complaints: list[str] = []
        self._has_failed = False

    def start(self, run: ViewedRun) -> None:
        self._run = run

    def show(self, records: Sequence[TimedRecord]) -> Sequence[str]:
        for record, _ in records:
            found = alert_of(record)
            if found is not None:
                self._send(*found)
        told, self._complaints = self._complaints, []
        return told

    def close(self) -> None:
        """Does nothing: each message has been sent, or given up."""

    def _send(self, kind: AlertKind, text: str) -> None:
        assert self._run is not None
        now, last = self._clock(), self._sent_s.get(kind)
        if last is not None and now - last < ALERT_EVERY_S and kind not in (AlertKind.ENDED, AlertKind.EXHAUSTED):
            self._held_back[kind] = self._held_back.get(kind, 0) + 1
            return
        self._sent_s[kind] = now
        more = self._held_back.pop(kind, 0)
        since = f" (and {count(more, 'time')} more since the last message)" if more else ""
        alert = Alert(
            kind=kind,
            run=self._run.name,
            folder=self._run.folder.path,
            text=f"{self._run.name}: {kind.value}: {text}{since}",
        )
        why = self._try_to_deliver(alert)
        if why and not self._has_failed:  # of a row of failures, the first is told
            self._complaints.append(f"did not take a message ({why}); training goes on")
        self._has_failed = bool(why)

    def _try_to_deliver(self, alert: Alert) -> str:
        """Returns why the last attempt failed; "": one did not."""
        why = ""
        for rest_s in self._deliver.rests_s:
            self._rest(rest_s)
            try:
                self._deliver(alert)
            except NotDelivered as error:
                why = str(error)
            else:
                return ""
        return why


def alert_of(record: AnyRecord) -> tuple[AlertKind, str] | None:
    """Returns what a record is worth a message of, and its words; None: it is not."""
    match record:
        case Note(subject=NoteSubject.DEGRADED, text=text):
            return AlertKind.DEGRADED, text
        case Note(subject=NoteSubject.CHECKPOINT, text=text):
            return AlertKind.CHECKPOINT_FAILED, text
        case Waiting():
            return AlertKind.WAITING, sentence(record) or ""
        case RunEnded(status=RunStatus.EXHAUSTED):
            return AlertKind.EXHAUSTED, ending(record)
        case RunEnded():
            return AlertKind.ENDED, ending(record)
        case _:
            return None
