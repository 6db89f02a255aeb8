"""What readers of a run have been told: a coordinator that is started again tells some of it once more."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from planaria.protocol.messages.journal import AnyEntry
from planaria.protocol.messages.records import AnyRecord, PlanTaken, Restored, StepCommitted, StepSkipped
from planaria.protocol.phases import Purpose
from planaria.protocol.thresholds import RECORDS_SEARCHED


class ToldRecords:
    """Records that readers have, so that each reaches them once.

    Attributes:
        last_step: the last one that readers know to be committed.
    """

    def __init__(self, last_step: int = 0) -> None:
        self.last_step = last_step
        self._restored_in = 0
        self._recent: deque[AnyRecord] = deque(maxlen=RECORDS_SEARCHED)

    @property
    def last(self) -> AnyRecord | None:
        """The last one that readers have; None: they have none."""
        return self._recent[-1] if self._recent else None

    def has(self, record: AnyRecord) -> bool:
        """Returns whether a record is among the last ones that readers have."""
        return record in self._recent

    def takes(self, record: AnyRecord, *, again: bool) -> bool:
        """Notes a record and returns whether it is new.

        Args:
            record: that a coordinator tells.
            again: whether an earlier coordinator may have told it. A step that is older than the last return to a
                checkpoint is not told again: it is trained once more. Its record need not be the one that was told, as
                a power loss may have taken the journal's, and what workers know of it has fewer facts.
        """
        if again and record in self._recent:
            return False
        match record:
            case StepCommitted() | StepSkipped():
                if record.step <= self.last_step or (again and record.generation < self._restored_in):
                    return False
                self.last_step = record.step
            case Restored():
                self.last_step = record.to_step
            case PlanTaken(purpose=Purpose.RESTORE):
                self._restored_in = record.generation
            case _:
                pass
        self._recent.append(record)
        return True


def untold(known: ToldRecords, entries: Sequence[AnyEntry]) -> list[AnyRecord]:
    """Returns what a journal has and readers do not: the coordinator before was gone between the two.

    Args:
        known: that readers have; takes note of what is returned.
        entries: of the journal.
    """
    told_at = max((at for at, entry in enumerate(entries) if any(map(known.has, entry.records))), default=-1)
    late = [record for entry in entries[told_at + 1 :] for record in entry.records]
    return [record for record in late if known.takes(record, again=True)]
