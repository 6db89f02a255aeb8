"""Journal entries as bytes, each as what differs from those before it.

A loss changes little of a plan of thousands of nodes, and nothing of the links between their hosts: of both an entry
has only what is new. This module owns the two directions of that; all others see whole entries.
"""

from __future__ import annotations

import msgspec

from planaria.protocol.messages.journal import (
    AnyEntry,
    JournalEntry,
    JournalPast,
    JournalPlan,
    PlanValidityState,
    encode_entry,
)
from planaria.protocol.messages.message import decoded
from planaria.protocol.messages.plan_delta import PlanUpdate, UpdateError, difference, updated
from planaria.protocol.messages.run_measurements import KnownLinks
from planaria.protocol.messages.to_worker import PlanMessage


class JournalPlanUpdate(JournalEntry, frozen=True, kw_only=True, tag="plan_update"):
    """A `JournalPlan`, whose message is an update of the one in the plan's entry before."""

    update: PlanUpdate
    stand: PlanValidityState
    step_time_s: float
    longest_s: float


WrittenEntry = AnyEntry | JournalPlanUpdate
"""An entry as it is written. What earlier versions wrote is whole, and read as it is."""

_written = msgspec.msgpack.Decoder(WrittenEntry)
_replace = msgspec.structs.replace


def decode_written(body: bytes) -> WrittenEntry:
    """Decodes an entry as it is written, by itself. Raises msgspec.DecodeError (a ValueError) for anything else."""
    entry: WrittenEntry = decoded(_written, body)
    return entry


class JournalChain:
    """The two directions for one journal. Its entries come in order: those that it has, then those that are added."""

    def __init__(self) -> None:
        self._plan: PlanMessage | None = None
        self._links = KnownLinks()

    def encode(self, entry: JournalEntry) -> bytes:
        """Returns the bytes of the next entry."""
        written = entry
        if isinstance(entry, JournalPlan):
            update = None if self._plan is None else difference(self._plan, entry.message)
            self._plan = entry.message
            if update is not None:
                written = JournalPlanUpdate(
                    update=update,
                    stand=entry.stand,
                    step_time_s=entry.step_time_s,
                    longest_s=entry.longest_s,
                    records=entry.records,
                    learnt=entry.learnt,
                )
        if (learnt := entry.learnt) is not None:
            is_known = learnt.links is self._links or learnt.links == self._links
            if is_known and learnt.links.probed:
                written = _replace(written, learnt=_replace(learnt, links=KnownLinks()), has_links_before=True)
            self._links = learnt.links
        return encode_entry(written)

    def decode(self, body: bytes) -> AnyEntry:
        """Returns the next entry, whole.

        Raises:
            ValueError: it is none, or its plan is an update of another plan than the last (`UpdateError`).
        """
        entry = decode_written(body)
        if isinstance(entry, JournalPlanUpdate):
            if self._plan is None:
                raise UpdateError(f"an update of plan {entry.update.base} came before any plan")
            entry = JournalPlan(
                message=updated(self._plan, entry.update),
                stand=entry.stand,
                step_time_s=entry.step_time_s,
                longest_s=entry.longest_s,
                records=entry.records,
                learnt=entry.learnt,
                has_links_before=entry.has_links_before,
            )
        if isinstance(entry, JournalPlan):
            self._plan = entry.message
        elif isinstance(entry, JournalPast):
            self._plan = None if entry.plan is None else entry.plan.message
        if entry.learnt is not None and entry.has_links_before:
            entry = _replace(entry, learnt=_replace(entry.learnt, links=self._links), has_links_before=False)
        elif entry.learnt is not None:
            self._links = entry.learnt.links
        return entry
