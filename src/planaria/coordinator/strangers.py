"""Connections that have not shown the job's token: how many may be open, for how long, and what is told of them.

Whoever belongs to the job says so within milliseconds. So those that have been silent longest are the ones that go.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from planaria.coordinator.connection import Connection

log = logging.getLogger(__name__)

MAX_STRANGERS: Final = 256
HELLO_WITHIN_S: Final = 10.0
TELL_EVERY_S: Final = 10.0
"""A flood of refusals is one line in this time, not thousands."""


class Strangers:
    """Those that are connected, oldest first.

    Args:
        tell: takes a line for the user.
        most: that may be connected at once.
    """

    def __init__(self, tell: Callable[[str], None], most: int = MAX_STRANGERS) -> None:
        self._tell = tell
        self._most = most
        self._since: dict[Connection, float] = {}
        self._refused = 0
        self._reason = ""
        self._told = -TELL_EVERY_S

    def __len__(self) -> int:
        return len(self._since)

    def came(self, connection: Connection, now: float) -> Connection | None:
        """Returns the connection that has to make room, if one has."""
        self._since[connection] = now
        return next(iter(self._since)) if len(self._since) > self._most else None

    def gone(self, connection: Connection) -> bool:
        """It said who it is, or is closed. Returns whether it was a stranger."""
        return self._since.pop(connection, None) is not None

    def overdue(self, now: float) -> list[Connection]:
        """Those that have said nothing for too long."""
        return [connection for connection, since in self._since.items() if now - since > HELLO_WITHIN_S]

    def refused(self, reason: str) -> None:
        """A stranger was sent away."""
        log.info("a connection is refused: %s", reason)
        self._refused += 1
        self._reason = reason

    def tell(self, now: float) -> None:
        """Tell of refusals since the last time, not too often."""
        if not self._refused or now - self._told < TELL_EVERY_S:
            return
        many = (
            f"{self._refused} connections were refused, the last" if self._refused > 1 else "a connection was refused"
        )
        self._tell(f"{many} because of this: {self._reason}. Training is not disturbed.")
        self._refused, self._told = 0, now
