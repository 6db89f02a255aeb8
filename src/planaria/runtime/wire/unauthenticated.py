"""Limits connections that have not shown the job's token: their number, their time, and what is told of them.

Whoever belongs to the job says so within milliseconds. So those that have been silent longest are the ones that go.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from planaria.runtime.thresholds import MAX_STRANGERS, TELL_EVERY_S

Kind = TypeVar("Kind", bound=Hashable)


class Strangers(Generic[Kind]):
    """The connections without a token, oldest first. Times are monotonic seconds.

    Args:
        tell: takes a line for people.
        patience_s: how long one may stay without showing the token.
        most: that may be connected at once.
    """

    def __init__(self, tell: Callable[[str], None], patience_s: float, most: int = MAX_STRANGERS) -> None:
        self._tell = tell
        self._patience_s = patience_s
        self._most = most
        self._since: dict[Kind, float] = {}
        self._refused = 0
        self._reason = ""
        self._told = -TELL_EVERY_S

    def __len__(self) -> int:
        return len(self._since)

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._since)

    def came(self, connection: Kind, now: float) -> Kind | None:
        """Notes a new connection; returns the connection that has to make room, if one has."""
        self._since[connection] = now
        return self.oldest() if len(self._since) > self._most else None

    def oldest(self) -> Kind | None:
        return next(iter(self._since), None)

    def gone(self, connection: Kind) -> None:
        """Forgets a connection that has said what it is, or is closed."""
        self._since.pop(connection, None)

    def overdue(self, now: float) -> list[Kind]:
        """Returns the connections that have been silent for too long."""
        return [connection for connection, since in self._since.items() if now - since > self._patience_s]

    def refused(self, reason: str) -> None:
        """Counts a refused connection."""
        self._refused += 1
        self._reason = reason

    def tell(self, now: float) -> None:
        """Reports refusals since the last time, not too often."""
        if not self._refused or now - self._told < TELL_EVERY_S:
            return
        count = "a connection was" if self._refused == 1 else f"{self._refused} connections were"
        self._tell(f"{count} refused, the last because of this: {self._reason}")
        self._refused, self._told = 0, now
