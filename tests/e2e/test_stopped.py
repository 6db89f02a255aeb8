"""The coordinator's process is stopped, not dead: it is found, killed and replaced, and never do two of them act. Where
the command is stopped, or all there is, nothing is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from planaria.protocol.messages.records import AnyRecord, StepCommitted
from planaria.runtime.coordinator.nodes import process_state
from tests.e2e.commands import DEADLINE_S, PLANARIA, Command, descendants, summary, wait_until
from tests.e2e.conftest import Reference, Run
from tests.e2e.jobs import Outcome, make_emulated_job, make_job, profile
from tests.e2e.test_restart import assert_complete


def named(run_folder: Path, name: str) -> list[int]:
    """Pids of the run's coordinators that call themselves so: "coordinator" or "standby"."""
    log = str((run_folder / "logs" / "coordinator.log").resolve())
    found = []
    for process in Path("/proc").iterdir():
        try:
            is_one = process.name.isdigit() and (process / "comm").read_text().strip() == name
            if is_one and os.readlink(process / "fd" / "1") == log:
                found.append(int(process.name))
        except OSError:
            continue
    return found


class Stopper:
    """Sends signals to the run's coordinators when a step is committed, once a step."""

    def __init__(self, run_folder: Path, signals: dict[int, list[tuple[str, signal.Signals]]]) -> None:
        self._folder = run_folder
        self._signals = signals

    def __call__(self, record: AnyRecord, time_s: float) -> None:
        if isinstance(record, StepCommitted):
            for name, number in self._signals.pop(record.step, []):
                assert wait_until(lambda name=name: named(self._folder, name))
                (pid,) = named(self._folder, name)
                os.kill(pid, number)


def told(outcome: Outcome) -> list[str]:
    return [event["text"] for event in outcome.events("note") if "the coordinator is gone" in event["text"]]


def test_a_coordinator_that_is_stopped_is_replaced(tmp_path: Path, text: Path, run: Run, reference: Reference) -> None:
    """Together with a node, whose loss the next one hears of; and once more."""
    job = make_job(text, train__steps=16, run__checkpoint_every=5)
    stop = [("coordinator", signal.SIGSTOP)]
    stopper = Stopper(tmp_path / "run-0", {5: [*stop], 11: [*stop]})
    outcome = run(job, "kill:node=2,step=6,at=backward", observers=[stopper])
    assert_complete(outcome, reference(job), 2)
    assert all("stopped for" in text for text in told(outcome))
    assert [event["node"] for event in outcome.events("node_lost")] == [2]
    assert not named(outcome.result.folder, "coordinator")


@pytest.mark.proof
def test_a_standby_that_is_stopped_takes_no_part(tmp_path: Path, text: Path, run: Run, reference: Reference) -> None:
    """The coordinator dies, and whoever is to follow is stopped: that one is killed too before another begins."""
    job = make_job(text, train__steps=12)
    both = [("standby", signal.SIGSTOP), ("coordinator", signal.SIGKILL)]
    outcome = run(job, observers=[Stopper(tmp_path / "run-0", {5: both})])
    assert_complete(outcome, reference(job), 2)
    assert [text.count("stopped for") for text in told(outcome)] == [0, 1]


@pytest.mark.proof
def test_a_standby_that_is_stopped_is_replaced_before_it_is_needed(
    tmp_path: Path, run: Run, reference: Reference
) -> None:
    folder = tmp_path / "run-0"
    path = tmp_path / "profile.json"
    path.write_bytes(msgspec.json.encode(profile(layer_s=0.015)))
    stopped: list[int] = []

    def act(record: AnyRecord, time_s: float) -> None:
        if not isinstance(record, StepCommitted):
            return
        if record.step == 2:
            assert wait_until(lambda: named(folder, "standby"))
            stopped.extend(named(folder, "standby"))
            os.kill(stopped[0], signal.SIGSTOP)
        standby = named(folder, "standby")
        if stopped and standby and stopped[0] not in standby and len(stopped) == 1:
            stopped.append(standby[0])
            os.kill(named(folder, "coordinator")[0], signal.SIGKILL)

    job = make_emulated_job(path, train__steps=12)
    outcome = run(job, observers=[act])
    assert_complete(outcome, reference(job), 1)
    assert len(stopped) == 2
    assert "stopped for" not in told(outcome)[0]


# Whoever stops the command, or everything


def suspended(command: Command, suspend: Callable[[subprocess.Popen[str]], None], steps: int) -> None:
    """A run that is suspended in between ends as if it had not been. Its steps take half a second."""
    command.write_emulated_job(steps=steps, layer_s=0.01)
    # In this session, and a process group of its own: what a shell makes of a job.
    process = subprocess.Popen(
        [*PLANARIA, "train", "job.toml"],
        cwd=command.folder,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        text=True,
        process_group=0,
    )
    command.wait_for_step(2)
    suspend(process)
    assert process.wait(timeout=DEADLINE_S) == 0
    assert not descendants(command.folder)
    events = (command.folder / "runs" / "job" / "events.jsonl").read_text()
    assert "the coordinator is gone" not in events
    assert '"node_lost"' not in events
    weights = summary(command)["weights_sha256"]
    assert command.run("train", "job.toml", "--reference", "--name", "alone")[0] == 0
    assert weights in (command.folder / "runs" / "alone" / "summary.json").read_text()


LONG_S = 3.0
"""Three times as long as anybody may be silent."""


def test_ctrl_z_and_fg_kill_nobody(command: Command) -> None:
    """Only the command is in the terminal's foreground group. The others train on until nobody takes what they tell."""

    def suspend(process: subprocess.Popen[str]) -> None:
        os.killpg(process.pid, signal.SIGTSTP)
        assert wait_until(lambda: process_state(process.pid) == "T")
        time.sleep(LONG_S)
        os.killpg(process.pid, signal.SIGCONT)

    suspended(command, suspend, steps=10)


@pytest.mark.proof
def test_a_job_that_is_suspended_as_a_whole_goes_on(command: Command) -> None:
    """The coordinator first and the command last; and the other way round when it goes on, half a second apart."""

    def suspend(process: subprocess.Popen[str]) -> None:
        (coordinator,) = named(command.folder / "runs" / "job", "coordinator")
        others = [pid for pid in descendants(command.folder) if pid not in (coordinator, process.pid)]
        order = [coordinator, *others, process.pid]
        for pid in order:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.5 if pid == coordinator else 0)
        time.sleep(LONG_S)
        for pid in reversed(order):
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.5 if pid == process.pid else 0)

    suspended(command, suspend, steps=6)
