"""The journal: what the coordinator decided, durable before anybody acts on it. SQLite in WAL mode.

A commit survives the death of the coordinator's process; `synchronous = NORMAL` leaves the last ones to the mercy of
a power cut, which a worker's report of what it committed makes up for.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from planaria.protocol.journal import JournalCommit, JournalEntry, decode_entry, encode_entry

_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (number INTEGER PRIMARY KEY, entry BLOB);
"""


class Journal:
    """Append-only record of plans and commits."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database: sqlite3.Connection | None = None

    def start(self) -> None:
        self._database = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = NORMAL")
        self._database.executescript(_SCHEMA)

    def write(self, entry: JournalEntry) -> None:
        """Returns when the entry is durable."""
        assert self._database is not None
        self._database.execute("INSERT INTO entries (entry) VALUES (?)", (encode_entry(entry),))

    def last_step(self) -> int | None:
        """The last committed step; None when there is none."""
        assert self._database is not None
        rows = self._database.execute("SELECT entry FROM entries ORDER BY number DESC")
        entries = (decode_entry(row[0]) for row in rows)
        return next((entry.step for entry in entries if isinstance(entry, JournalCommit)), None)

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None
