"""What every journal of a run can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from planaria.protocol.messages.journal import (
    AnyEntry,
    JournalCommit,
    JournalDisputes,
    JournalEntry,
    JournalNode,
    JournalPolicy,
    JournalRecovery,
    JournalStop,
)
from planaria.protocol.messages.journal_chain import WrittenEntry, has_links
from planaria.protocol.messages.to_worker import NOT_APPLIED
from planaria.runtime.thresholds import COMMITS_KEPT

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

    def write(self, entry: JournalEntry) -> None:
        """Returns when the entry is durable."""
        ...

    def close(self) -> None: ...


_BETWEEN: Final = (JournalNode, JournalRecovery, JournalPolicy, JournalStop)
"""Entries that say nothing of the commit before them; others do: a checkpoint is of it, a plan goes on from it."""


def kept(entries: Sequence[WrittenEntry]) -> list[int]:
    """Returns which entries are still of use: not commits that the next one under the same plan makes old, but for
    those that were not applied (they are counted) or settled a dispute, and the last entries with what was learnt and
    with the links of that."""
    learnt_at = max((at for at, entry in enumerate(entries) if entry.learnt is not None), default=None)
    links_at = max((at for at, entry in enumerate(entries) if has_links(entry)), default=None)
    disputed = {each.step for entry in entries if isinstance(entry, JournalDisputes) for each in entry.disputes}
    found: list[int] = []
    is_old = False
    for at in reversed(range(len(entries))):
        entry = entries[at]
        if not isinstance(entry, JournalCommit):
            is_old &= isinstance(entry, _BETWEEN)
            found.append(at)
            continue
        is_of_use = entry.commit.clip_factor == NOT_APPLIED or entry.step in disputed
        if not is_old or is_of_use or at >= len(entries) - COMMITS_KEPT or at in (learnt_at, links_at):
            found.append(at)
        is_old = True
    return found[::-1]
