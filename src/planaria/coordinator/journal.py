"""The journal: what the coordinator decided, durable before anybody acts on it. SQLite in WAL mode.

A commit survives the death of the coordinator's process; `synchronous = NORMAL` leaves the last ones to the mercy of
a power cut, which a worker's report of what it committed makes up for.
"""

from __future__ import annotations

import logging
import sqlite3
from collections import deque
from pathlib import Path

from planaria.protocol.events import JournalCommit, JournalPlan

_SCHEMA = """
CREATE TABLE IF NOT EXISTS plans (generation INTEGER, step INTEGER, plan BLOB);
CREATE TABLE IF NOT EXISTS commits (
    step INTEGER, generation INTEGER, loss REAL, clip_factor REAL, exponents TEXT
);
"""


log = logging.getLogger(__name__)


class Journal:
    """Append-only record of plans and commits."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: deque[JournalCommit | JournalPlan] = deque()
        self._database: sqlite3.Connection | None = None

    def start(self) -> None:
        self._database = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = NORMAL")
        self._database.executescript(_SCHEMA)

    def write(self, entry: JournalCommit | JournalPlan) -> None:
        """Returns when the entry is durable, or kept in memory while the disk has no room: then training goes on, and
        a coordinator that dies meanwhile leaves its workers ahead of the journal."""
        was_full = bool(self._kept)
        self._kept.append(entry)
        try:
            while self._kept:
                self._insert(self._kept[0])
                self._kept.popleft()
        except sqlite3.OperationalError as error:
            if not was_full:
                log.warning(
                    "%s: %s. Training goes on, and steps are written there once they can be.", self._path, error
                )

    def _insert(self, entry: JournalCommit | JournalPlan) -> None:
        assert self._database is not None
        match entry:
            case JournalCommit(step, generation, loss, clip_factor, exponents):
                self._database.execute(
                    "INSERT INTO commits VALUES (?, ?, ?, ?, ?)",
                    (step, generation, loss, clip_factor, ",".join(map(str, exponents))),
                )
            case JournalPlan(generation, step, plan):
                self._database.execute("INSERT INTO plans VALUES (?, ?, ?)", (generation, step, plan))

    def last_step(self) -> int | None:
        """The last committed step; None when there is none."""
        assert self._database is not None
        row = self._database.execute("SELECT step FROM commits ORDER BY rowid DESC LIMIT 1").fetchone()
        return None if row is None else int(row[0])

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None
