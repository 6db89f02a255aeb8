"""The journal as a file: what the coordinator decided, durable before anybody acts on it. SQLite in WAL mode.

An entry survives the death of the coordinator's process; `synchronous = NORMAL` leaves the last ones to the mercy of
a power cut, which a worker's report of what it committed makes up for; what no worker knows is synchronised. Entries
have checksums of their own and follow each other without gaps: of a damaged file, what comes before the damage is kept,
and nothing after it is believed.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import xxhash

from planaria.job.errors import UserError
from planaria.protocol.messages.journal import AnyEntry, is_lasting
from planaria.protocol.messages.journal_chain import JournalChain
from planaria.runtime.journal.journal import LATER, next_entry, past_of
from planaria.runtime.thresholds import ENTRIES_KEPT, THINNED_EVERY

_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    number INTEGER PRIMARY KEY, run TEXT NOT NULL, entry BLOB NOT NULL, checksum INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS job (fingerprint TEXT NOT NULL, checksum INTEGER NOT NULL);
"""

_FORMAT = 2
"""Format of the file, as SQLite's user_version. 0: the first one, in which the job's fingerprint was made otherwise."""

_Row = tuple[int, str, bytes, int]

log = logging.getLogger(__name__)


class SqliteJournal:
    """Keeps what one run decided, in order.

    Args:
        path: the path of the file.
        run: whose entries are read and written. Those of earlier runs in the same folder are removed: what they
            decided is over, and none of their workers lives.
        job: fingerprint of the job.

    Attributes:
        complaints: what was wrong with the file, and what was kept.
    """

    def __init__(self, path: Path, run: str = "", job: str = "") -> None:
        self._path = path
        self._run = run
        self._job = job
        self._kept: deque[tuple[bytes, bool]] = deque()
        self._database: sqlite3.Connection | None = None
        self._chain = JournalChain()
        self._since_thinned = 0
        self.complaints: list[str] = []

    def start(self) -> None:
        """Opens the file, whatever is left of it.

        Raises:
            UserError: it is another job's, or a later version of Planaria wrote it.
        """
        try:
            self._database = self._open()
            self._begin_run()
        except sqlite3.DatabaseError as error:
            self._keep((), str(error))

    def read(self) -> list[AnyEntry]:
        """Returns this run's entries in order; of a damaged file, up to the damage. The file is whole again afterwards.

        Raises:
            UserError: a later version of Planaria wrote an entry.
        """
        rows: list[_Row] = []
        entries: list[AnyEntry] = []
        self._chain = JournalChain()
        try:
            for row in self._whole_rows():
                entries.append(next_entry(self._chain, row[2], f"journal {self._path} has an entry that"))
                rows.append(row)
            (answer,) = self._need().execute("PRAGMA quick_check(1)").fetchone()
            damage = None if answer == "ok" else str(answer)
        except (_Damaged, sqlite3.DatabaseError) as error:
            damage = str(error)
        if damage is not None:
            self._keep(rows, damage)
        self._since_thinned = len(entries)
        return entries

    def write(self, entry: AnyEntry) -> None:
        """Returns when the entry is durable (against power cuts too, if `is_lasting`), or kept in memory
        while the disk has no room: then training goes on, and a coordinator that dies meanwhile leaves its workers
        ahead of the journal."""
        was_full = bool(self._kept)
        self._kept.append((self._chain.encode(entry), is_lasting(entry)))
        try:
            while self._kept:
                self._insert(*self._kept[0])
                self._kept.popleft()
            if self._since_thinned >= THINNED_EVERY:
                self._thin()
        except sqlite3.OperationalError as error:
            if not was_full:
                log.warning(
                    "%s: %s. Training goes on, and steps are written there once they can be.", self._path, error
                )

    def _insert(self, body: bytes, lasts: bool) -> None:
        database = self._need()
        if lasts:
            database.execute("PRAGMA synchronous = FULL")
        try:
            database.execute(
                "INSERT INTO entries (run, entry, checksum) VALUES (?, ?, ?)",
                (self._run, body, _checksum(self._run, body)),
            )
        finally:
            if lasts:
                database.execute("PRAGMA synchronous = NORMAL")
        self._since_thinned += 1

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _need(self) -> sqlite3.Connection:
        assert self._database is not None, "the journal is not open"
        return self._database

    def _open(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version > _FORMAT:
                raise UserError(f"journal {self._path} has format {version}; {_FORMAT} is known here. {LATER}")
            database.executescript(_SCHEMA)
            if version < _FORMAT:
                database.execute("DELETE FROM job")
                database.execute(f"PRAGMA user_version = {_FORMAT}")
        except (sqlite3.DatabaseError, UserError):
            database.close()
            raise
        return database

    def _begin_run(self) -> None:
        database = self._need()
        found = database.execute("SELECT fingerprint, checksum FROM job").fetchone()
        if found is None:
            database.execute("INSERT INTO job VALUES (?, ?)", (self._job, _checksum(self._job)))
        elif found[0] != self._job and _checksum(str(found[0])) == found[1]:
            raise UserError(
                f"journal {self._path} belongs to another job: [model] or [train] differ. "
                "Go on with the same job, or start a new run by --name NAME."
            )
        database.execute("DELETE FROM entries WHERE run != ?", (self._run,))

    def _whole_rows(self) -> Iterator[_Row]:
        """Yields rows in order until one is missing or wrong, where it raises _Damaged."""
        last = 0
        rows = self._need().execute("SELECT number, run, entry, checksum FROM entries ORDER BY number")
        for row in rows:
            number, run, body, checksum = row
            if number != last + 1:
                raise _Damaged(f"entry {last + 1} is missing")
            if not isinstance(body, bytes) or _checksum(run, body) != checksum:
                raise _Damaged(f"the checksum of entry {number} is wrong")
            last = number
            yield row

    def _thin(self) -> None:
        """Puts one entry in the place of all but the newest. A damaged file stays as it is: who reads it finds that."""
        self._since_thinned = 0
        try:
            rows = list(self._whole_rows())
        except _Damaged as damage:
            log.warning("%s: %s. Old entries stay there.", self._path, damage)
            return
        past = past_of(body for _, _, body, _ in rows[:-ENTRIES_KEPT])
        left = [(self._run, past, _checksum(self._run, past)), *(row[1:] for row in rows[-ENTRIES_KEPT:])]
        database = self._need()
        database.execute("BEGIN IMMEDIATE")
        database.execute("DELETE FROM entries")
        database.executemany("INSERT INTO entries (run, entry, checksum) VALUES (?, ?, ?)", left)
        database.execute("COMMIT")

    def _keep(self, rows: tuple[_Row, ...] | list[_Row], damage: str) -> None:
        """Moves the damaged file aside, and goes on with a new one that has these rows."""
        self.close()
        aside = self._path.with_name(f"{self._path.name}.damaged")
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                self._path.with_name(self._path.name + suffix).replace(aside.with_name(aside.name + suffix))
        self._database = self._open()
        self._begin_run()
        self._database.execute("BEGIN")
        self._database.executemany("INSERT INTO entries VALUES (?, ?, ?, ?)", rows)
        self._database.execute("COMMIT")
        self.complaints.append(
            f"the journal {self._path} is damaged ({damage}): its first {len(rows)} entries are kept, "
            f"the damaged file is {aside.name}"
        )


class _Damaged(Exception):
    """An entry of the journal is missing, or is not what was written."""


def _checksum(run: str, body: bytes = b"") -> int:
    """Returns the checksum as a signed number, which is what SQLite holds."""
    digest = xxhash.xxh3_64_intdigest(f"{run}/".encode() + body)
    return digest - (1 << 64) if digest >= 1 << 63 else digest
