"""What every journal of a run can do."""

from __future__ import annotations

from typing import Final, Protocol

from planaria.protocol.messages.journal import AnyEntry

LATER: Final = "A later version of Planaria wrote it: go on with that one, or start a new run by --name NAME."


class Journal(Protocol):
    """Keeps what one run decided, in order.

    Attributes:
        complaints: what was wrong when it was read, and what was kept.
    """

    complaints: list[str]

    def start(self) -> None:
        """Opens it. Raises UserError: it cannot be used."""
        ...

    def read(self) -> list[AnyEntry]:
        """Returns the run's entries in order. Raises UserError: one is not known here."""
        ...

    def write(self, entry: AnyEntry) -> None:
        """Returns when the entry is durable."""
        ...

    def close(self) -> None: ...
