"""What every journal of a run can do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from planaria.job.errors import UserError
from planaria.protocol.messages.journal import AnyEntry, JournalPast, encode_entry
from planaria.protocol.messages.journal_chain import JournalChain
from planaria.protocol.run.replay import JournalState

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


def next_entry(chain: JournalChain, body: bytes, where: str) -> AnyEntry:
    """Returns the next entry of a journal, whose bytes are as they were written; `where` names it.

    Raises:
        UserError: a later version of Planaria wrote it.
    """
    try:
        entry = chain.decode(body)
        if isinstance(entry, JournalPast):
            JournalState.of([entry])
    except ValueError as error:
        raise UserError(f"{where} is not known here: {error}. {LATER}") from None
    return entry


def past_of(bodies: Iterable[bytes]) -> bytes:
    """Returns the entry that takes the place of a journal's first ones, which are known here."""
    chain = JournalChain()
    return encode_entry(JournalState.of(chain.decode(body) for body in bodies).written())
