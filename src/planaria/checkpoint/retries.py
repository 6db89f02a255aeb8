"""Tries calls to a store again for a while, and says so to whoever hears of it in this process; if nobody, to its log.

A worker tells its coordinator, which makes records of it; a process that has no records yet tells people itself.
"""

from __future__ import annotations

import errno
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar
from urllib.parse import urlsplit

from planaria.job.errors import UserError
from planaria.plan.plan import WorkerId
from planaria.protocol.messages.from_worker import StoreTried, TryOutcome

log = logging.getLogger(__name__)
_Result = TypeVar("_Result")

PATIENCE_S: Final = 60.0
"""How long a call is tried again before it fails. Not measured."""
UNRESOLVED_S: Final = 5.0
"""How long a call is tried again whose host's name does not resolve, where a run begins and nothing has come through to
that place: most likely the name is wrong. Not measured."""
TOLD_EVERY_S: Final = 15.0
"""Seconds between two lines to people about calls that fail: all workers may try the same store. Not measured."""
FORGOTTEN_S: Final = 120.0
"""Seconds after the moment of its next attempt in which nothing was heard of a call: its process is gone. Not
measured."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 8.0
_FINAL: Final = (
    FileNotFoundError, PermissionError, FileExistsError, NotImplementedError, ImportError, ValueError, TypeError,
)  # fmt: skip
"""Errors that another attempt does not change."""

Hear = Callable[[StoreTried], None]
"""Takes what is said of a call, in the thread that makes it."""

_hearers: list[Hear] = []
_beginnings: list[None] = []
"""One for each block `at_first_contact` that this process is in."""
_came_through: Counter[str] = Counter()
"""Calls of this process that came through to each place. One alone says nothing: fsspec's look at an http URL asks
nobody."""


class StoreError(OSError):
    """Raised when a store does not do what it is asked for."""


@contextmanager
def heard_by(hear: Hear) -> Iterator[None]:
    """Has a function hear of every call of this process that is tried again, and no other, until the block ends."""
    _hearers.append(hear)
    try:
        yield
    finally:
        _hearers.remove(hear)


@contextmanager
def at_first_contact() -> Iterator[None]:
    """Has calls fail soon to places whose names do not resolve and that were not reached yet, until the block ends."""
    _beginnings.append(None)
    try:
        yield
    finally:
        _beginnings.pop()


class Tries:
    """Makes calls to one place, each until it works, with pauses that double, for as long as there is patience.

    Args:
        place: the URL, as people are told of it.
        patience_s: how long a call is tried again.
    """

    def __init__(self, place: str, patience_s: float = PATIENCE_S) -> None:
        self._place = place
        self._patience_s = patience_s
        self._host = "://".join(urlsplit(place)[:2])

    def __call__(self, doing: str, call: Callable[[], _Result]) -> _Result:
        """Makes a call; `doing` says for people what it does.

        Raises:
            OSError: what the last attempt said.
        """
        began, pause_s, failed = time.monotonic(), _FIRST_PAUSE_S, 0
        error: Exception | None = None

        def say(outcome: TryOutcome, again_s: float = 0.0) -> None:
            said = StoreTried(
                place=self._place,
                doing=doing,
                failed=failed,
                outcome=outcome,
                why="" if error is None else line_of(error),
                again_s=again_s,
                seconds=time.monotonic() - began,
            )
            if _hearers:
                _hearers[-1](said)
            else:
                log.warning("%s", sentence_of(said))

        while True:
            try:
                result = call()
            except UserError:
                raise
            except Exception as raised:  # each file system has errors of its own
                error = raised
            else:
                _came_through[self._host] += 1
                if failed:
                    say(TryOutcome.THROUGH)
                return result
            is_unknown = bool(_beginnings) and _came_through[self._host] < 2 and _is_unresolved(error)
            patience_s = min(self._patience_s, UNRESOLVED_S) if is_unknown else self._patience_s
            is_answer = isinstance(error, FileNotFoundError | FileExistsError)
            is_final = isinstance(error, _FINAL) or type(error).__name__ == "NoCredentialsError"
            if is_final or time.monotonic() - began + pause_s > patience_s:
                if failed:
                    failed += not is_answer
                    say(TryOutcome.THROUGH if is_answer else TryOutcome.GIVEN_UP)
                if is_answer:
                    raise error
                why = f"a name in it does not resolve: {line_of(error)}" if is_unknown else line_of(error)
                raise StoreError(errno.EIO, why) from error
            failed += 1
            say(TryOutcome.AGAIN, pause_s)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


class RetryNews:
    """What people are told of calls that fail: when they begin to, now and then while they do, and what came of it.

    However many workers try however many files, that is a few lines.
    """

    def __init__(self) -> None:
        self._failing: dict[tuple[WorkerId | None, str, str], float] = {}
        """By who makes it, place and what it does: until when more is to be heard of the call."""
        self._told_s: float | None = None
        self._is_told = False

    def take(self, said: StoreTried, now: float, worker: WorkerId | None = None) -> tuple[str, str] | None:
        """Takes what was said of a call at monotonic seconds; returns what to tell people of it, if anything: its level
        ("info" or "warning"), and the text.

        Args:
            said: what was said.
            now: monotonic seconds.
            worker: that makes the call; None: another process.
        """
        call = (worker, said.place, said.doing)
        self._failing = {one: until for one, until in self._failing.items() if until > now and one != call}
        if said.outcome is TryOutcome.AGAIN:
            others = len(self._failing)
            self._failing[call] = now + said.again_s + FORGOTTEN_S
            if self._told_s is not None and now - self._told_s < TOLD_EVERY_S:
                return None
            self._told_s, self._is_told = now, True
            beside = f", as {'is another call' if others == 1 else f'are {others} others'}" if others else ""
            return "warning", sentence_of(said) + beside
        if not self._is_told or (said.outcome is TryOutcome.THROUGH and self._failing):
            return None
        self._is_told = False
        return "info" if said.outcome is TryOutcome.THROUGH else "warning", sentence_of(said)


@contextmanager
def told_by(tell: Callable[[str, str], None]) -> Iterator[None]:
    """Has people told, by level and text, of calls of this process that are tried again, until the block ends."""
    news = RetryNews()

    def hear(said: StoreTried) -> None:
        if (told := news.take(said, time.monotonic())) is not None:
            tell(*told)

    with heard_by(hear):
        yield


def sentence_of(said: StoreTried) -> str:
    """Returns what was said of a call, for people."""
    place, doing, after = said.place, said.doing, f"{said.seconds:.1f} s after the first"
    if said.outcome is TryOutcome.AGAIN:
        return f"{place}: cannot {doing} (attempt {said.failed}: {said.why}); tried again in {said.again_s:g} s"
    if said.outcome is TryOutcome.THROUGH:
        return f"{place}: attempt {said.failed + 1} to {doing} came through, {after}"
    return f"{place}: attempt {said.failed} to {doing} failed too, {after} ({said.why}): it is given up"


def _is_unresolved(error: BaseException) -> bool:
    """Returns whether an error comes of a host's name that is not known."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, socket.gaierror):
        cause = cause.__cause__ or cause.__context__
    return cause is not None


def line_of(error: BaseException) -> str:
    """Returns what an error says, in a line."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__
