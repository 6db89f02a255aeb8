"""`planaria top` of real runs: what it tells of each device, and the live view on a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import termios
import time
from pathlib import Path

import pytest

from planaria.protocol.messages.records import Recovered, StepCommitted
from planaria.protocol.messages.user import Answer
from planaria.runtime.coordinator.client import Contact
from planaria.ui.cli.live import Address, look, stop
from planaria.ui.cli.top import device_rows, headline, print_once, table_lines
from tests.e2e.commands import DEADLINE_S, PLANARIA, Command, wait_until
from tests.e2e.conftest import Run
from tests.e2e.jobs import make_emulated_job, make_job
from tests.e2e.test_live import User


def test_a_lost_node_is_told_beside_those_that_work(tmp_path: Path, slow_layers: Path, run: Run) -> None:
    def act(folder: Path) -> Answer:
        contact = Contact.read(folder / "coordinator.json")
        found = look(Address(address=contact.address, token=contact.token), details=True)
        assert isinstance(found, Answer)
        return found

    user = User(tmp_path / "run-0", Recovered, act)
    job = make_emulated_job(slow_layers, cluster__zones=["east", "west"])
    run(job, "kill:node=2,step=2,at=backward", observers=[user])
    answer = user.answer
    assert isinstance(answer, Answer)
    assert answer.details is not None
    rows = {row.node: row for row in device_rows(answer.state, answer.details)}
    assert (rows[2].state, rows[2].zone) == ("lost", "east")
    assert {rows[node].state for node in (0, 1, 3, 4, 5, 6)} <= {"works", "spare"}
    assert rows[0].place == (0, 0)
    assert rows[0].word is not None
    assert answer.details.last is not None
    assert answer.details.last.step >= 2
    assert "of the estimated throughput" in headline(tmp_path, answer)[1]
    lines = [line for line, _ in table_lines(answer, most_rows=3)]
    assert lines[0].startswith("zone east: 4 nodes, devices: ")
    assert any(" lost " in line for line in lines)
    assert lines[-1] == "5 more; --once prints all"


def test_memory_and_instructions_of_a_real_model_are_told(
    tmp_path: Path, text: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []

    def act(folder: Path) -> None:
        def is_whole() -> bool:
            found = look(folder, details=True)
            assert isinstance(found, Answer)
            assert found.details is not None
            told.extend(word.doing for word in found.details.workers.values())
            return all(word.held_bytes > 10_000_000 for word in found.details.workers.values())

        try:
            assert wait_until(is_whole)
            print_once(folder)
        finally:
            stop(folder, discard=True)

    user = User(tmp_path / "run-0", StepCommitted, act)
    run(make_job(text, cluster__nodes=4, cluster__memory_gb=8, train__steps=5000), observers=[user])
    assert user.answer is None
    shown = capsys.readouterr().out
    assert re.search(r"\d+\.\d MB of 8\.0 GB", shown), shown
    assert "zone" not in shown
    known = re.compile(r"at a step's end|in the .+|while .+")
    assert told
    assert all(known.fullmatch(doing) for doing in told if doing)


def shown_until(terminal: int, wanted: str) -> str:
    """Reads a terminal until something stands there."""
    deadline, shown = time.monotonic() + DEADLINE_S, ""
    ready = select.poll()
    ready.register(terminal, select.POLLIN)
    while wanted not in shown:
        assert time.monotonic() < deadline, shown
        if ready.poll(200):
            shown += os.read(terminal, 1 << 16).decode(errors="replace")
    return shown


def test_on_a_terminal_it_follows_the_run_until_q_and_leaves_the_terminal_as_it_was(command: Command) -> None:
    command.write_emulated_job(steps=100_000)
    train = command.start("train", "job.toml")
    command.wait_for_step(2)
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    arguments = [*PLANARIA, "top", "runs/job"]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            arguments, cwd=command.folder, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
        )

    top = start()
    assert "runs/job" in shown_until(ours, "devices: 4 work")
    os.write(ours, b"x")
    shown_until(ours, "loss ")
    os.write(ours, b"q")
    shown_until(ours, "\x1b[?1049l")  # the screen of before is back
    assert top.wait(DEADLINE_S) == 0
    killed = start()
    shown_until(ours, "q: quit")
    killed.terminate()
    assert killed.wait(DEADLINE_S) == 128 + signal.SIGTERM
    assert termios.tcgetattr(theirs) == before
    assert train.poll() is None
    refused = subprocess.run(arguments, cwd=command.folder, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert refused.returncode == 2
    assert "this is no terminal: add --once" in refused.stderr
    train.send_signal(signal.SIGINT)
    train.communicate(timeout=DEADLINE_S)
    os.close(ours)
    os.close(theirs)


def test_a_run_that_is_over_or_is_none_is_one_line(command: Command) -> None:
    command.write_emulated_job(steps=3)
    assert command.run("train", "job.toml")[0] == 0
    over = command.start("top", "runs/job", "--once").communicate(timeout=DEADLINE_S)
    assert over[0].startswith("runs/job: completed: 3 of 3 steps, loss ")
    assert over[0].count("\n") == 1
    code, said = command.run("top", "runs/other", "--once")
    assert (code, said.count("\n")) == (2, 1)
    assert "run folder runs/other does not exist" in said
