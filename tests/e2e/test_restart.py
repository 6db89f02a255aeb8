"""The coordinator's process is killed, for real and at any moment: the run goes on, and ends with the same bits."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planaria.job.faults import COORDINATOR_POINTS
from planaria.protocol.messages.records import AnyRecord, Note, StepCommitted, Waiting
from planaria.protocol.planning.failure_rate import Watched
from planaria.runtime.coordinator.settings import CoordinatorSettings
from planaria.runtime.launch.session import train_job
from planaria.runtime.launch.supervisor import CoordinatorFailed, Supervisor
from planaria.runtime.launch.training.request import TrainRequest
from planaria.runtime.nodes.local_nodes import LocalNodes
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.thresholds import MAX_RESTARTS
from planaria.ui.cli import live
from tests.e2e.conftest import Reference, Run
from tests.e2e.jobs import Outcome, make_emulated_job, make_job
from tests.e2e.tap import THIN
from tests.proof import rest_in_proof
from tests.testkit.witness.run_folder import journal_of

ON_ITS_OWN = [
    point for point in COORDINATOR_POINTS if point not in ("join", "plan", "send", "loss", "report", "evaluated")
]
"""Where it may be killed in a step of a run that loses no node and evaluates nothing."""


def assert_complete(outcome: Outcome, reference: Outcome, deaths: int | None = None) -> None:
    """The same bits, every step once, and as many deaths."""
    outcome.assert_same_bits(reference)
    steps = [event["step"] for event in outcome.events("step_committed")]
    assert steps == sorted(set(steps))
    assert steps == list(reference.losses)
    told = [event for event in outcome.events("note") if "the coordinator is gone" in event["text"]]
    assert deaths is None or len(told) == deaths


@pytest.mark.proof
@pytest.mark.parametrize("at", ON_ITS_OWN)
def test_a_coordinator_that_dies_at_any_point_changes_no_bit(
    at: str, text: Path, run: Run, reference: Reference
) -> None:
    job = make_job(text, cluster__nodes=4, run__checkpoint_every=2)
    first = ["coordinator:step=3,at=vote"] if at == "return" else []
    outcome = run(job, *first, f"coordinator:step=2,at={at}")
    assert_complete(outcome, reference(job), 1 + len(first))
    assert not outcome.events("node_lost")


@pytest.mark.proof
@pytest.mark.parametrize("at", ["join", "send", "plan", "tell", "commit", "end"])
def test_a_death_at_the_first_moment_changes_no_bit(at: str, text: Path, run: Run, reference: Reference) -> None:
    job = make_job(text, cluster__nodes=4)
    outcome = run(job, f"coordinator:step=1,at={at}")
    assert_complete(outcome, reference(job), 1)
    assert not outcome.events("node_lost")


@pytest.mark.parametrize("at", rest_in_proof(["loss", "report", "plan", "send", "vote", "commit", "tell"]))
def test_a_death_during_the_recovery_from_another_changes_no_bit(
    at: str, text: Path, run: Run, reference: Reference
) -> None:
    job = make_job(text)
    outcome = run(job, "kill:node=2,step=3,at=backward", f"coordinator:step=3,at={at}")
    assert_complete(outcome, reference(job), 1)
    assert [event["node"] for event in outcome.events("node_lost")] == [2]
    (recovery,) = outcome.result.recoveries
    assert recovery.detect_ms is not None, "the account begins with the loss, not with the next coordinator"


@pytest.mark.parametrize("at", rest_in_proof(["commit", "vote", "tell"]))
def test_a_node_dies_with_the_coordinator(at: str, text: Path, run: Run, reference: Reference) -> None:
    """Its successor hears of it from the launcher."""
    job = make_job(text)
    outcome = run(job, f"coordinator:step=3,at={at}", "kill:node=1,step=3,at=apply", "kill:node=4,step=3,at=vote")
    assert_complete(outcome, reference(job), 1)
    assert {event["node"] for event in outcome.events("node_lost")} == {1, 4}
    assert [event["live_nodes"] for event in outcome.events("node_lost")] == [6, 5]


@pytest.mark.proof
def test_a_node_without_memory_says_so_to_the_next_coordinator(text: Path, run: Run, reference: Reference) -> None:
    """Else it would do nothing for ever, and others would be blamed for it."""
    job = make_job(text)
    outcome = run(job, "coordinator:step=2,at=tell", "memory:node=0,step=3,at=load")
    assert_complete(outcome, reference(job), 1)
    (lost,) = outcome.events("node_lost")
    assert lost["node"] == 0
    assert lost["cause"].startswith("out of memory in the load of")


@pytest.mark.proof
def test_several_deaths_in_a_row_change_no_bit(text: Path, run: Run, reference: Reference) -> None:
    job = make_job(text, cluster__nodes=4, run__checkpoint_every=2)
    points = ["join", "plan", "return", "vote", "commit", "return", "tell", "save", "manifest", "end"]
    outcome = run(job, *(f"coordinator:step={1 + at // 3},at={point}" for at, point in enumerate(points)))
    assert_complete(outcome, reference(job))
    assert not outcome.events("node_lost")


def coordinator_of(run_folder: Path) -> int | None:
    """Pid of the one that serves: it says so in its name."""
    log = str((run_folder / "logs" / "coordinator.log").resolve())
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                serves = (process / "comm").read_text().strip() == "coordinator"
                if serves and os.readlink(process / "fd" / "1") == log:
                    return int(process.name)
    return None


class Assassin:
    """A thread that kills the coordinator again and again, each time a random moment after the last."""

    def __init__(self, run_folder: Path, seed: int, count: int, longest_s: float) -> None:
        self._folder = run_folder
        self._draw = random.Random(seed)
        self._count = count
        self._longest_s = longest_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._shoot, daemon=True)
        self.killed: list[int] = []

    def __call__(self, record: AnyRecord, time_s: float) -> None:
        if self._thread.ident is None:
            self._thread.start()

    def _shoot(self) -> None:
        while len(self.killed) < self._count and not self._ended.wait(self._draw.uniform(0, self._longest_s)):
            pid = coordinator_of(self._folder)
            if pid is not None and pid not in self.killed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.killed.append(pid)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()


@pytest.mark.proof
@pytest.mark.parametrize("seed", [1, 0])
def test_deaths_at_random_moments_change_no_bit(
    seed: int, tmp_path: Path, text: Path, run: Run, reference: Reference
) -> None:
    job = make_job(text, train__steps=24, run__checkpoint_every=5)
    assassin = Assassin(tmp_path / "run-0", seed, 4, 0.15)
    kills = ["kill:node=2,step=6,at=backward", "kill:node=5,step=14,at=sync"] if seed % 2 else []
    with contextlib.closing(assassin):
        outcome = run(job, *kills, observers=[assassin])
    assert_complete(outcome, reference(job))
    assert assassin.killed


@pytest.mark.proof
def test_deaths_change_no_bit_where_one_entry_stands_for_the_journals_old_ones(
    tmp_path: Path, text: Path, run: Run, reference: Reference
) -> None:
    (tmp_path / THIN).touch()
    job = make_job(text, train__steps=24, run__checkpoint_every=5)
    deaths = [f"coordinator:step={step},at={at}" for step, at in ((9, "vote"), (14, "commit"), (20, "save"))]
    outcome = run(job, "kill:node=2,step=6,at=backward", "kill:node=5,step=16,at=sync", *deaths)
    assert_complete(outcome, reference(job))
    (past, *newest) = journal_of(tmp_path / "run-0" / "journal.sqlite")
    assert past["type"] == "past"
    assert len(newest) < 24


@pytest.mark.proof
def test_requests_go_on_over_a_restart(tmp_path: Path, slow_layers: Path, run: Run, reference: Reference) -> None:
    """The same address, the same token; a request that comes in between is answered by the next coordinator."""
    job = make_emulated_job(slow_layers, train__steps=10)
    answers: list[str] = []

    def ask(record: AnyRecord, time_s: float) -> None:
        if isinstance(record, Note) and "the coordinator is gone" in record.text:
            asker.start()

    def act() -> None:
        answers.append(live.status(tmp_path / "run-0", as_json=False))
        answers.append(live.drain(tmp_path / "run-0", 6, 0.0))

    asker = threading.Thread(target=act)
    outcome = run(job, "coordinator:step=2,at=vote", observers=[ask])
    asker.join()
    assert "step" in answers[0]
    assert answers[1].startswith("node 6 hands over its work")
    assert_complete(outcome, reference(job), 1)
    assert [event["node"] for event in outcome.events("node_released")] == [6]


@pytest.mark.proof
def test_a_stop_that_was_promised_is_kept(tmp_path: Path, text: Path, run: Run) -> None:
    def stop(record: AnyRecord, time_s: float) -> None:
        if isinstance(record, StepCommitted) and record.step == 2:
            live.stop(tmp_path / "run-0")
            pid = coordinator_of(tmp_path / "run-0")
            if pid is not None:
                os.kill(pid, signal.SIGKILL)

    outcome = run(make_job(text, cluster__nodes=4, train__steps=5000), observers=[stop])
    assert outcome.summary["status"] == "stopped"
    assert outcome.summary["weights_sha256"] is not None
    assert len([event for event in outcome.events("note") if event["text"].startswith("stopping: ")]) == 1


@pytest.mark.proof
def test_a_death_while_the_job_waits_for_nodes_is_survived(
    tmp_path: Path, text: Path, run: Run, reference: Reference
) -> None:
    job = make_job(text, cluster__nodes=4, resilience__when_exhausted="wait")

    def act() -> None:
        pid = coordinator_of(tmp_path / "run-0")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        live.add(tmp_path / "run-0", 1)

    helper = threading.Thread(target=act)

    def watch(record: AnyRecord, time_s: float) -> None:
        if isinstance(record, Waiting) and helper.ident is None:
            helper.start()

    outcome = run(job, "kill:node=0,step=2,at=backward", observers=[watch])
    helper.join()
    assert_complete(outcome, reference(job), 1)
    assert not outcome.events("restored")


class Damager:
    """Does something to the journal between a coordinator's death and its successor's birth."""

    def __init__(self, path: Path, damage: Callable[[Path], None]) -> None:
        self._path = path
        self._damage = damage
        self.times = 0

    def __call__(self, record: AnyRecord, time_s: float) -> None:
        if isinstance(record, Note) and "the coordinator is gone" in record.text:
            self._damage(self._path)
            self.times += 1


def cut_back(entries: int) -> Callable[[Path], None]:
    """As if the last entries had not reached the disk when the power went."""

    def damage(path: Path) -> None:
        with contextlib.closing(sqlite3.connect(path)) as database, database:
            database.execute("DELETE FROM entries WHERE number > (SELECT MAX(number) FROM entries) - ?", (entries,))

    return damage


@pytest.mark.proof
@pytest.mark.parametrize("at", ["vote", "tell"])
@pytest.mark.parametrize("entries", [3, 1])
def test_a_journal_that_lags_behind_its_workers_is_made_up_for(
    entries: int, at: str, tmp_path: Path, text: Path, run: Run, reference: Reference
) -> None:
    job = make_job(text, cluster__nodes=4)
    damager = Damager(tmp_path / "run-0" / "journal.sqlite", cut_back(entries))
    outcome = run(job, f"coordinator:step=4,at={at}", observers=[damager])
    assert damager.times == 1
    assert_complete(outcome, reference(job), 1)
    assert not outcome.events("restored")


def tear(path: Path) -> None:
    """The write-ahead log ends in the middle of its last record."""
    log = path.with_name(path.name + "-wal")
    os.truncate(log, log.stat().st_size - 100)


def overwrite(path: Path) -> None:
    """Nothing of the file can be read."""
    path.with_name(path.name + "-wal").unlink(missing_ok=True)
    path.write_bytes(os.urandom(50_000))


@pytest.mark.parametrize("damage", rest_in_proof([overwrite, tear]))
def test_a_damaged_journal_is_made_up_for(
    damage: Callable[[Path], None], tmp_path: Path, text: Path, run: Run, reference: Reference
) -> None:
    job = make_job(text, cluster__nodes=4)
    damager = Damager(tmp_path / "run-0" / "journal.sqlite", damage)
    outcome = run(job, "coordinator:step=4,at=vote", observers=[damager])
    assert damager.times == 1
    assert_complete(outcome, reference(job), 1)
    warned = [event for event in outcome.events("note") if "journal" in event["text"] and "damaged" in event["text"]]
    assert len(warned) == (damage is overwrite)


def test_a_coordinator_that_always_dies_ends_the_run(tmp_path: Path, text: Path, run: Run) -> None:
    """The same accident again and again is none."""

    def break_the_journal(path: Path) -> None:
        """Not even what is damaged can be put aside."""
        if path.is_file():
            path.unlink()
            path.mkdir()
            (path.with_name(path.name + ".damaged") / "something").mkdir(parents=True)

    damager = Damager(tmp_path / "run-0" / "journal.sqlite", break_the_journal)
    with pytest.raises(CoordinatorFailed, match=r"(?s)died 6 times.*Directory not empty"):
        run(make_job(text, cluster__nodes=4, train__steps=5000), "coordinator:step=2,at=vote", observers=[damager])
    assert damager.times == MAX_RESTARTS
    assert coordinator_of(tmp_path / "run-0") is None


def test_a_restart_is_told_and_leaves_nothing_behind(
    text: Path, run: Run, reference: Reference, nodes: LocalNodes
) -> None:
    job = make_job(text, cluster__nodes=4, run__checkpoint_every=2)
    outcome = run(job, "coordinator:step=3,at=vote")
    assert_complete(outcome, reference(job), 1)
    (restarted,) = outcome.events("coordinator_restarted")
    assert (restarted["step"], restarted["returned"], restarted["lag"]) == (3, 4, 0)
    assert coordinator_of(outcome.result.folder) is None
    assert not nodes.pids()
    assert not outcome.result.folder.joinpath("coordinator.json").exists()


@pytest.mark.proof
def test_a_run_that_goes_on_knows_of_the_losses_before(
    text: Path, run: Run, nodes: LocalNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the same nodes: of others, losses of before say nothing."""
    watched: list[Watched] = []

    class Supervised(Supervisor):
        def __init__(self, launcher: LocalNodes, settings: CoordinatorSettings, *others: Any) -> None:
            watched.append(settings.watched)
            super().__init__(launcher, settings, *others)

    monkeypatch.setattr("planaria.runtime.launch.training.run.Supervisor", Supervised)
    job = make_job(text, cluster__nodes=4)
    first = run(job, "kill:node=0,step=2,at=backward")
    second = run(job, "kill:node=1,step=3,at=backward", resume=first.result.folder)
    assert [outcome.summary["status"] for outcome in (first, second)] == ["exhausted"] * 2
    other = make_job(text, cluster__nodes=5)
    folder = RunFolder.open(first.result.folder)
    train_job(TrainRequest(job=other, folder=folder, resume=True, earlier=job), nodes)
    assert [seen.losses for seen in watched] == [0, 1, 0]
    assert watched[1].seconds > 0
    assert watched[2] == Watched()
