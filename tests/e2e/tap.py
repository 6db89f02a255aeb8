"""A tap on real coordinators, for the witness: writes down each entry of the journal and each vote, in order.

It lies beside the journal of every coordinator that tests start from what is forked; what ships knows nothing of it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from planaria.protocol.coordinator import Coordinator
from planaria.protocol.messages.events import Command, Event, Received
from planaria.protocol.messages.from_worker import Returned, Vote
from planaria.protocol.messages.journal import AnyEntry, JournalEntry, JournalPast, encode_entry
from planaria.runtime.journal import sqlite_journal
from planaria.runtime.journal.sqlite_journal import SqliteJournal
from tests.testkit.witness.run_folder import TAP, tapped

THIN = ".thin"
"""File beside a run folder by which one entry takes the place of the journal's old ones after a dozen already."""

_encode = msgspec.msgpack.Encoder().encode


class Tap:
    """The tap of this process: a file, once there is a journal."""

    def __init__(self) -> None:
        self._file = -1
        self._path = Path()
        self._entries: list[bytes] = []

    def open(self, folder: Path, run: str) -> None:
        """Goes on with the run's file, or begins one in place of an earlier run's."""
        path = self._path = folder / TAP
        known = tapped(path)
        if not known or known[0][1] != run:
            path.unlink(missing_ok=True)
            known = []
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._entries = []
        for kind, *what in known:
            if kind == "cut":
                del self._entries[what[0] :]
            elif kind == "journal":
                self._entries.append(what[0])
        if not known:
            self.write("run", run)

    def write(self, *entry: Any) -> None:
        """Appends an entry. Where the disk is full the tap is given up: the witness reads the journal alone then."""
        if self._file < 0:
            return
        body = _encode(entry)
        try:
            os.write(self._file, len(body).to_bytes(4, "little") + body)
        except OSError:
            os.close(self._file)
            self._file = -1
            self._path.unlink()

    def wrote(self, entry: JournalEntry) -> None:
        self._entries.append(encode_entry(entry))
        self.write("journal", self._entries[-1])

    def read(self, entries: Sequence[JournalEntry]) -> None:
        """Notes what a coordinator that begins again finds: some may be lost; the last may be the journal's alone.
        Those that one entry stands for are there."""
        bodies = [encode_entry(entry) for entry in entries]
        num_removed = 0
        if entries and isinstance(entries[0], JournalPast):
            num_removed = self._entries.index(bodies[1])
            del bodies[0]
        num_known = num_removed + len(bodies)
        if num_known < len(self._entries):
            del self._entries[num_known:]
            self.write("cut", num_known)
        for body in bodies[len(self._entries) - num_removed :]:
            self._entries.append(body)
            self.write("journal", body)

    def heard(self, event: Event) -> None:
        if isinstance(event, Received) and isinstance(event.message, Vote | Returned):
            self.write("heard", event.worker, event.message)


def install() -> None:
    """Has every coordinator of this process, and of those forked from it, write down what the witness reads."""
    tap = Tap()
    start, read, write, handle = SqliteJournal.start, SqliteJournal.read, SqliteJournal.write, Coordinator.handle

    def tapped_start(journal: SqliteJournal) -> None:
        if (journal._path.parents[1] / THIN).exists():
            for name, number in (("THINNED_EVERY", 12), ("ENTRIES_KEPT", 4)):
                setattr(sqlite_journal, name, number)
        start(journal)
        tap.open(journal._path.parent, journal._run)

    def tapped_read(journal: SqliteJournal) -> list[AnyEntry]:
        entries = read(journal)
        tap.read(entries)
        return entries

    def tapped_write(journal: SqliteJournal, entry: AnyEntry) -> None:
        write(journal, entry)
        tap.wrote(entry)

    def tapped_handle(machine: Coordinator, event: Event, now: float) -> Sequence[Command]:
        tap.heard(event)
        return handle(machine, event, now)

    for name, tapped_method in (("start", tapped_start), ("read", tapped_read), ("write", tapped_write)):
        setattr(SqliteJournal, name, tapped_method)
    Coordinator.handle = tapped_handle  # type: ignore[method-assign,assignment]
