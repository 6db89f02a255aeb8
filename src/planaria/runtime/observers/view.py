"""The protocol of whatever shows a run elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from planaria.job.settings import Job
from planaria.protocol.messages.records import AnyRecord
from planaria.runtime.run_folder.run_folder import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewedRun:
    """A run, as a view begins with it.

    Attributes:
        name: of the run.
        job: without what is secret.
        folder: the run's folder, where a view may keep what it needs to go on with the same curve.
        step: the last step of before; the run goes on after it. 0: it is new.
    """

    name: str
    job: Job
    folder: RunFolder
    step: int


TimedRecord = tuple[AnyRecord, float]
"""A record, and when it was, in seconds since 1970."""


class View(Protocol):
    """Whatever shows a run elsewhere. All is called from one thread, off the training path, and may raise or stall.

    Once something has raised, only `close` is called. A step may come again, after `Restored`: the last one counts.

    Attributes:
        name: by which messages call it.
    """

    name: str

    def start(self, run: ViewedRun) -> None:
        """Opens what is shown in. Called once, before the first records."""

    def show(self, records: Sequence[TimedRecord]) -> Sequence[str]:
        """Shows the next records, in their order; returns what the user should hear of it, a line each."""

    def close(self) -> None:
        """Closes what `start` has opened, as far as it has. The last record was `RunEnded`, unless the run broke."""
