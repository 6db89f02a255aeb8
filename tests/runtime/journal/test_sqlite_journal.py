"""The journal on a real disk: what is written is read, and of a damaged file what comes before the damage."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from planaria.job.errors import UserError
from planaria.plan.plan import NodeId
from planaria.protocol.messages.journal import (
    AnyEntry,
    Fate,
    JournalCommit,
    JournalNode,
    JournalPast,
    JournalRestart,
    JournalStop,
    encode_entry,
)
from planaria.protocol.messages.records import NodeJoined, Note
from planaria.protocol.messages.run_measurements import HostLink, KnownLinks, RunMeasurements
from planaria.protocol.messages.to_worker import NOT_APPLIED, Commit
from planaria.protocol.run.replay import JournalState
from planaria.runtime.journal import sqlite_journal
from planaria.runtime.journal.sqlite_journal import SqliteJournal
from planaria.runtime.thresholds import ENTRIES_KEPT, THINNED_EVERY

RUN, JOB = "a run", "a job"


def entry(number: int) -> AnyEntry:
    """Of a run's journal, of different sizes."""
    match number % 5:
        case 0:
            note = Note(level="info", text="x" * (number * 37 % 3000))
            return JournalNode(node=NodeId(number), fate=Fate.LOST, cause="killed", records=(note,))
        case 1:
            return JournalRestart(records=(NodeJoined(node=number, live_nodes=1),))
        case _:
            commit = Commit(
                generation=1,
                step=number,
                clip_factor=0.5,
                exponents=(number,) * 40,
                hold=False,
                loss=1.5,
                norm=2.5,
                learning_rate=0.5,
            )
            return JournalCommit(commit=commit)


def written(path: Path, count: int, run: str = RUN) -> list[AnyEntry]:
    """A journal of so many entries, whose writer was killed: nothing is closed, the files are as they lie there."""
    entries = [entry(number) for number in range(count)]
    alive = path.with_name("alive.sqlite")
    journal = SqliteJournal(alive, run, JOB)
    journal.start()
    for one in entries:
        journal.write(one)
    for suffix in ("", "-wal"):
        shutil.copy(alive.with_name(alive.name + suffix), path.with_name(path.name + suffix))
    journal.close()
    return entries


def test_what_no_worker_knows_outlasts_a_power_cut(tmp_path: Path) -> None:
    """Its transaction is synchronised, and no other's is."""
    said: list[str] = []
    with opened(tmp_path / "journal.sqlite") as journal:
        journal._need().set_trace_callback(said.append)
        for one in (entry(2), JournalStop(), entry(3)):
            journal.write(one)
        assert [line.partition(" (")[0] for line in said if "BEGIN" not in line and "COMMIT" not in line] == [
            "INSERT INTO entries",
            "PRAGMA synchronous = FULL",
            "INSERT INTO entries",
            "PRAGMA synchronous = NORMAL",
            "INSERT INTO entries",
        ]
        assert len(journal.read()) == 3


@contextlib.contextmanager
def opened(path: Path, run: str = RUN, job: str = JOB) -> Iterator[SqliteJournal]:
    journal = SqliteJournal(path, run, job)
    try:
        journal.start()
        yield journal
    finally:
        journal.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


@pytest.mark.parametrize("count", [0, 1, 50, 3000])
def test_what_was_written_before_a_death_is_read(count: int, path: Path) -> None:
    entries = written(path, count)
    with opened(path) as journal:
        assert journal.read() == entries
        assert not journal.complaints
        journal.write(entry(count))
    with opened(path) as journal:
        assert journal.read() == [*entries, entry(count)]


def test_a_long_runs_journal_stays_short_and_says_the_same(path: Path) -> None:
    """One entry says what the old ones said: losses, commits that were not applied, and what was learnt, with links
    that an entry before it has."""
    links = KnownLinks(probed=(HostLink(one="a", other="b", latency_s=1e-4, bytes_per_s=1e9),))
    entries: list[AnyEntry] = []
    for number in range(10_000):
        if number % 1500 == 7:
            entries.append(JournalNode(node=NodeId(number), fate=Fate.LOST, cause="killed", strikes=True))
        factor = NOT_APPLIED if number % 1900 == 5 else 0.5
        commit = Commit(
            generation=1,
            step=number,
            clip_factor=factor,
            exponents=(4,),
            hold=False,
            loss=1.5,
            norm=2.5,
            learning_rate=0.5,
        )
        learnt = RunMeasurements(decision_s=number, links=links) if number % 1700 == 3 else None
        entries.append(JournalCommit(commit=commit, learnt=learnt))
    with opened(path) as journal:
        journal.read()
        for one in entries:
            journal.write(one)
    with opened(path) as journal:
        left = journal.read()
    assert len(left) < THINNED_EVERY
    assert left[-ENTRIES_KEPT:] == entries[-ENTRIES_KEPT:]
    assert JournalState.of(left) == JournalState.of(entries)


def test_damage_is_not_covered_up_by_an_entry_that_stands_for_others(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sqlite_journal, "THINNED_EVERY", 8)
    monkeypatch.setattr(sqlite_journal, "ENTRIES_KEPT", 3)
    with opened(path) as journal:
        for number in range(7):
            journal.write(entry(number))
        journal._need().execute("UPDATE entries SET checksum = checksum + 1 WHERE number = 3")
        journal.write(entry(7))
        assert "the checksum of entry 3 is wrong. Old entries stay there." in caplog.text
        assert journal.read() == [entry(0), entry(1)]


def test_what_another_version_says_of_removed_entries_is_refused_in_one_line(path: Path) -> None:
    with opened(path) as journal:
        journal.write(entry(2))
        journal._insert(encode_entry(JournalPast(plan=None, rest=b"other")), False)
        with pytest.raises(UserError, match=r"has an entry that is not known here.*A later version"):
            journal.read()


def test_another_jobs_journal_is_refused(path: Path) -> None:
    written(path, 3)
    with pytest.raises(UserError, match="belongs to another job"), opened(path, job="another job"):
        pass


def test_what_an_earlier_run_in_the_folder_wrote_is_over(path: Path) -> None:
    written(path, 3)
    with opened(path, run="the next run") as journal:
        assert journal.read() == []
        journal.write(entry(7))
        assert journal.read() == [entry(7)]
        assert not journal.complaints


def assert_a_prefix_is_kept(path: Path, entries: list[AnyEntry]) -> int:
    """And the journal goes on from there; returns how many were kept."""
    with opened(path) as journal:
        kept = journal.read()
        assert kept == entries[: len(kept)]
        journal.write(entry(99))
        has_complained = bool(journal.complaints)
    with opened(path) as journal:
        assert journal.read() == [*kept, entry(99)]
        assert not journal.complaints, "it is whole again"
    assert has_complained == path.with_name(path.name + ".damaged").exists()
    return len(kept)


@pytest.mark.parametrize("seed", range(40))
def test_a_log_that_is_torn_anywhere_keeps_the_entries_before(seed: int, path: Path) -> None:
    """A death inside a write, or a power cut: SQLite's log ends somewhere."""
    entries = written(path, 60)
    log = path.with_name(path.name + "-wal")
    size = random.Random(seed).randrange(log.stat().st_size)
    os.truncate(log, size)
    kept = assert_a_prefix_is_kept(path, entries)
    assert kept <= size / 4096, "every entry wrote at least a page of the log"


@pytest.mark.parametrize("seed", range(40))
def test_a_file_that_is_damaged_anywhere_keeps_the_entries_before(seed: int, path: Path) -> None:
    """Some bytes are not what was written: in the log, or in the pages that have left it."""
    entries = written(path, 60)
    draw = random.Random(seed)
    if seed % 2:
        with contextlib.closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        victim = path
    else:
        victim = path.with_name(path.name + "-wal")
    data = bytearray(victim.read_bytes())
    at, length = draw.randrange(len(data)), draw.choice([1, 1, 30, 5000])
    data[at : at + length] = bytes(byte ^ draw.randrange(1, 256) for byte in data[at : at + length])
    victim.write_bytes(data)
    assert_a_prefix_is_kept(path, entries)


@pytest.mark.parametrize("size", [0, 1, 100, 4096, 5000, 20_000])
def test_a_file_that_is_cut_keeps_the_entries_before(size: int, path: Path) -> None:
    entries = written(path, 60)
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    os.truncate(path, size)
    assert_a_prefix_is_kept(path, entries)


def test_a_file_of_something_else_is_no_journal(path: Path) -> None:
    path.write_bytes(b"not a journal\n" * 1000)
    assert assert_a_prefix_is_kept(path, []) == 0
    assert path.with_name(path.name + ".damaged").read_bytes().startswith(b"not a journal")


def test_an_entry_that_is_missing_or_changed_ends_what_is_believed(path: Path) -> None:
    for statement in ("DELETE FROM entries WHERE number = 11", "UPDATE entries SET entry = x'00' WHERE number = 11"):
        entries = written(path, 30)
        with contextlib.closing(sqlite3.connect(path)) as database, database:
            database.execute(statement)
        assert assert_a_prefix_is_kept(path, entries) == 10
        for file in path.parent.iterdir():
            file.unlink()
