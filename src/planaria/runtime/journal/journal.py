"""What every journal of a run can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from planaria.plan.plan import NodeId
from planaria.protocol.messages.journal import (
    AnyEntry,
    Fate,
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
    """Returns which entries are still of use. Of commits that the next one under the same plan makes old, those are
    that were not applied (they are counted) or settled a dispute, and the last entries with what was learnt and with
    the links of that; of recoveries the last one; of notices those of nodes that are still there."""
    learnt_at = max((at for at, entry in enumerate(entries) if entry.learnt is not None), default=None)
    links_at = max((at for at, entry in enumerate(entries) if has_links(entry)), default=None)
    disputed = {each.step for entry in entries if isinstance(entry, JournalDisputes) for each in entry.disputes}
    found: list[int] = []
    is_old, has_recovery, has_commit, gone = False, False, False, set[NodeId]()
    for at in reversed(range(len(entries))):
        match entry := entries[at]:
            case JournalCommit():
                is_of_no_use = is_old and entry.commit.clip_factor != NOT_APPLIED and entry.step not in disputed
                is_old = has_commit = True
            case JournalRecovery():
                is_of_no_use = has_recovery
                has_recovery |= has_commit
            case JournalNode(fate=Fate.LEAVING, device=None):
                is_of_no_use = entry.node in gone
            case _:
                is_of_no_use = False
        if isinstance(entry, JournalNode) and entry.fate in (Fate.LOST, Fate.RELEASED):
            gone.update((entry.node,) if has_commit and entry.device is None else ())
        is_old &= isinstance(entry, (JournalCommit, *_BETWEEN))
        if not is_of_no_use or at >= len(entries) - COMMITS_KEPT or at in (learnt_at, links_at):
            found.append(at)
    return found[::-1]
