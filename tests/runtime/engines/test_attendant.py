"""What is done about tasks of an engine that are lost or held, and how a coordinator's task begins."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from signal import Signals
from types import SimpleNamespace

import pytest

from planaria.runtime.engines.attendant import EXHAUSTED, Attendant, is_complete, prepare
from planaria.runtime.engines.engine import EngineError, Task, TaskState
from planaria.runtime.engines.keeper import Keeper
from planaria.runtime.engines.launch_folder import Launch
from planaria.runtime.engines.slurm import state_of
from planaria.runtime.run_folder.run_folder import RunFolder


class EngineStandIn:
    """Has the tasks that a test says, and keeps what it was asked for."""

    poll_s = 0.01

    def __init__(self) -> None:
        self.now: list[Task] = []
        self.replaced: list[str] = []
        self.allowed: list[int] = []
        self.asked: list[str] = []
        self.fails = False

    def tasks(self) -> list[Task]:
        if self.fails:
            raise EngineError("squeue fails: it is away")
        return self.now

    def replace(self, task: Task) -> None:
        self.replaced.append(task.name)

    def allow(self, num_running: int) -> None:
        self.allowed.append(num_running)

    def come_back(self) -> None:
        self.asked.append("come back")

    def end(self) -> None:
        self.asked.append("end")


class Looking(Keeper):
    """A keeper of two nodes and a spare, of which so many live as a test says."""

    def __init__(self, engine: EngineStandIn, said: list[str]) -> None:
        super().__init__(engine, RunFolder(Path("/runs/job")), 2, 1, said.append)
        self.live: int | None = None
        self.wanted = 2
        self.labels: dict[int, str] = {}

    def _counted(self) -> tuple[int, int, Mapping[int, str]] | None:
        return None if self.live is None else (self.live, self.wanted, self.labels)


def of(*states: TaskState) -> list[Task]:
    return [Task(name=str(at), state=state) for at, state in enumerate(states)]


def test_a_lost_task_is_started_again_and_not_at_once_a_second_time() -> None:
    engine, said = EngineStandIn(), list[str]()
    keeper = Looking(engine, said)
    engine.now = of(TaskState.RUNNING, TaskState.LOST, TaskState.HELD, TaskState.DONE)
    keeper.look()
    keeper.look()
    assert engine.replaced == ["1", "2"]
    assert said == ["task 1 is lost, and started again"]


def test_a_task_that_runs_without_a_node_of_the_run_is_named_once() -> None:
    engine, said = EngineStandIn(), list[str]()
    keeper = Looking(engine, said)
    engine.now = of(TaskState.RUNNING, TaskState.RUNNING, TaskState.SPARE)
    keeper.labels = {0: "0", 1: "1"}
    keeper.live = 2
    keeper.look()
    keeper.live, keeper.labels = 1, {0: "0"}
    for _ in range(3):
        keeper.look()
    assert said == ["task 1 runs, and the run has no node of it: a spare may take its place"]
    keeper.live, keeper.labels = 2, {0: "0", 2: "1"}
    keeper.look()
    assert len(said) == 1, "the node is back under another number"


def test_a_spare_runs_while_the_engine_has_not_seen_a_loss() -> None:
    engine = EngineStandIn()
    keeper = Looking(engine, [])
    engine.now = of(TaskState.RUNNING, TaskState.RUNNING, TaskState.SPARE)
    for keeper.live in (None, 0, 1, 1):
        keeper.look()
    assert not engine.allowed, "the nodes have yet to come"
    for keeper.live in (2, 1):
        keeper.look()
    assert engine.allowed == [2], "it may be a moment"
    for keeper.live in (1, 1, 2, 2):
        keeper.look()
    assert engine.allowed == [2, 3, 2]


def test_a_run_that_began_on_its_least_nodes_may_have_as_many_as_it_wants() -> None:
    engine = EngineStandIn()
    keeper = Looking(engine, [])
    keeper.wanted = 4
    engine.now = of(TaskState.RUNNING, TaskState.RUNNING, TaskState.WAITING, TaskState.WAITING, TaskState.SPARE)
    for keeper.live in (1, 2, 2, 2):
        keeper.look()
    assert engine.allowed == [4], "what waits is not missing"
    engine.now = of(*[TaskState.RUNNING] * 4, TaskState.SPARE)
    for keeper.live in (4, 3, 3):
        keeper.look()
    assert engine.allowed == [4, 5], "the engine has not seen a loss"
    keeper.wanted = 3
    keeper.look()
    assert engine.allowed == [4, 5, 3], "one was given back"


def test_tasks_that_were_given_back_are_asked_for_when_the_run_wants_more() -> None:
    engine, said = EngineStandIn(), list[str]()
    keeper = Looking(engine, said)
    engine.now = of(*[TaskState.RUNNING] * 2, TaskState.GIVEN_BACK, TaskState.GIVEN_BACK, TaskState.SPARE)
    for keeper.live, keeper.wanted in ((2, 2), (2, 2)):
        keeper.look()
    assert not engine.replaced
    keeper.wanted = 3
    keeper.look()
    assert engine.replaced == ["2"]
    assert said == ["task 2 was given back, and is started again: the run wants 3 nodes now"]
    engine.now[2] = Task(name="2", state=TaskState.WAITING)
    keeper.look()
    assert engine.replaced == ["2"]
    assert engine.allowed == [2, 3]


def test_an_engine_that_does_not_answer_is_complained_of_once() -> None:
    engine, said = EngineStandIn(), list[str]()
    keeper = Looking(engine, said)
    engine.fails = True
    keeper.look()
    keeper.look()
    assert said == ["squeue fails: it is away"]


def test_a_run_without_a_checkpoint_is_moved_away(tmp_path: Path) -> None:
    assert not prepare(RunFolder(tmp_path / "job"))
    run = RunFolder.create(tmp_path, "job")
    run.job.write_text("{}")
    assert not prepare(run)
    assert (tmp_path / "job-begun" / "job.json").exists()
    run = RunFolder.create(tmp_path, "job")
    (run.checkpoints / "step-00000010").mkdir()
    (run.checkpoints / "step-00000010" / "manifest.json").write_text("{}")
    assert prepare(run)


@pytest.mark.parametrize(
    ("notice", "code", "asked"),
    [
        (Signals.SIGUSR1, 143, ["come back"]),
        (Signals.SIGUSR1, EXHAUSTED, ["come back"]),  # its agents, whose limit is near too, have handed over first
        (Signals.SIGUSR1, 0, []),
        (Signals.SIGTERM, 143, []),
        (None, 0, ["end"]),
    ],
)
def test_who_is_to_come_back_after_a_time_limit_does(
    notice: Signals | None, code: int, asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    launch = Launch(
        job_file="", overrides=(), name="job", runs=str(tmp_path), nodes=1, most_nodes=1, spares=0, python="",
        directory="",
    )  # fmt: skip
    engine, started = EngineStandIn(), SimpleNamespace(wait=lambda patience_s: code, send_signal=lambda number: None)
    attendant = Attendant(launch, (), engine, lambda text: None)

    def train(command: list[str]) -> SimpleNamespace:
        if notice is not None:
            attendant._heed(notice, None)
        return started

    monkeypatch.setattr(subprocess, "Popen", train)
    monkeypatch.setattr(signal, "signal", lambda number, heed: None)
    assert attendant.run() == code
    assert engine.asked == asked


def test_a_complete_run_is_known(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "job")
    assert not is_complete(run)
    run.summary.write_text(json.dumps({"status": "stopped"}))
    assert not is_complete(run)
    run.summary.write_text(json.dumps({"status": "completed"}))
    assert is_complete(run)


@pytest.mark.parametrize(
    ("state", "reason", "expected"),
    [
        ("RUNNING", "None", TaskState.RUNNING),
        ("PENDING", "Resources", TaskState.WAITING),
        ("PENDING", "BeginTime", TaskState.HELD),
        ("PENDING", "JobArrayTaskLimit", TaskState.SPARE),
        ("PENDING", "job requeued in held state", TaskState.GIVEN_BACK),
        ("PENDING", "JobHeldUser", TaskState.WAITING),
        ("COMPLETED", "None", TaskState.DONE),
        ("CANCELLED", "None", TaskState.DONE),
        ("FAILED", "NonZeroExitCode", TaskState.LOST),
        ("NODE_FAIL", "None", TaskState.LOST),
        ("OUT_OF_MEMORY", "OutOfMemory", TaskState.LOST),
    ],
)
def test_states_of_slurm(state: str, reason: str, expected: TaskState) -> None:
    assert state_of(state, reason) is expected
