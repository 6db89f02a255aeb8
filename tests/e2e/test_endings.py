"""How a run ends that somebody wants to end: by which signal, to whom, and what is left of it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import termios
from collections.abc import Iterator
from pathlib import Path
from signal import Signals

import pytest

from planaria.checkpoint.manifest import read_manifest
from tests.e2e.agents import NUM_NODES, Hosts, end_all, family
from tests.e2e.commands import DEADLINE_S, PLANARIA, Command, descendants, summary, wait_until
from tests.e2e.incubator import Incubator
from tests.proof import rest_in_proof

ENDLESS = 100_000
"""Steps: nothing but what is sent to it ends the run."""


def assert_saved(command: Command, status: str = "interrupted") -> None:
    """It ended after a whole step, which is on disk, and nothing of it runs."""
    ended = summary(command)
    steps = ended["steps"]
    assert ended["status"] == status
    assert isinstance(steps, int)
    assert 2 <= steps < ENDLESS
    checkpoint = command.folder / "runs" / "job" / "checkpoints" / f"step-{steps:08d}"
    assert read_manifest(checkpoint).step == steps
    assert ended["weights_sha256"]
    assert wait_until(lambda: not descendants(command.folder))


@pytest.mark.parametrize("number", rest_in_proof([Signals.SIGTERM, Signals.SIGHUP]))
def test_a_signal_saves_however_often_it_comes(command: Command, number: Signals) -> None:
    command.write_emulated_job(ENDLESS)
    process = command.start("train", "job.toml")
    command.wait_for_step(2)
    for _ in range(3):
        process.send_signal(number)
    _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 128 + number
    assert f"interrupted by {number.name}" in said
    assert "--resume" in said
    assert_saved(command)


@pytest.mark.parametrize("number", rest_in_proof([Signals.SIGTERM, Signals.SIGINT, Signals.SIGHUP], kept=2))
def test_a_signal_before_anything_was_recorded_leaves_the_name_free(
    command: Command, text: Path, number: Signals
) -> None:
    """There is no checkpoint that `--resume` could go on from. The job never gets further than to the measuring of its
    layers, which are not made before somebody writes into a pipe. SIGINT comes before that."""
    (command.folder / "mine.py").write_text(
        "from pathlib import Path\n\n"
        "def layers():\n"
        "    Path('measuring').touch()\n"
        "    return Path('pipe').read_text()\n"
    )
    os.mkfifo(command.folder / "pipe")
    command.write_job(text, 'type = "mine:layers"')
    process = command.start("train", "job.toml")
    assert wait_until((command.folder / ("runs/job/job.json" if number == Signals.SIGINT else "measuring")).exists)
    process.send_signal(number)
    _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 128 + number
    assert said.split() == ["planaria:", "error:", "interrupted"]
    assert wait_until(lambda: not descendants(command.folder))
    assert not (command.folder / "runs" / "job").exists()


def test_a_terminal_that_closes_ends_the_run_with_its_state_saved(command: Command) -> None:
    """Its processes get SIGHUP, and what they write there is refused."""
    command.write_emulated_job(ENDLESS)
    master, slave = os.openpty()
    process = subprocess.Popen(
        [*PLANARIA, "train", "job.toml"],
        cwd=command.folder,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY) and None,
    )
    os.close(slave)
    metrics = command.folder / "runs" / "job" / "metrics.jsonl"
    os.set_blocking(master, False)

    def has_begun() -> bool:
        with contextlib.suppress(BlockingIOError):
            os.read(master, 1 << 16)  # or writing there waits
        return metrics.exists() and metrics.read_text().count("\n") >= 2

    assert wait_until(has_begun)
    os.close(master)
    assert process.wait(DEADLINE_S) == 128 + signal.SIGHUP
    assert_saved(command)


@pytest.mark.proof
def test_a_pipe_that_closes_ends_the_run_with_its_state_saved(command: Command) -> None:
    command.write_emulated_job(ENDLESS)
    process = command.start("train", "job.toml")
    command.wait_for_step(2)
    assert process.stderr is not None
    process.stderr.close()
    process.stderr = None
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 128 + signal.SIGPIPE
    assert_saved(command)


@pytest.mark.proof
def test_a_run_that_was_told_to_ignore_hangups_goes_on(command: Command) -> None:
    """As nohup does."""
    command.write_emulated_job(ENDLESS)
    process = subprocess.Popen(
        [*PLANARIA, "train", "job.toml"],
        cwd=command.folder,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN) and None,
    )
    command.wait_for_step(2)
    process.send_signal(signal.SIGHUP)
    steps = (command.folder / "runs" / "job" / "metrics.jsonl").read_text().count("\n")
    command.wait_for_step(steps + 5)
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 128 + signal.SIGTERM
    assert_saved(command)


def test_a_run_that_is_stopped_ends_well(command: Command) -> None:
    command.write_emulated_job(ENDLESS)
    process = command.start("train", "job.toml")
    command.wait_for_step(2)
    assert command.start("stop", "runs/job").wait(DEADLINE_S) == 0
    _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert "stopped by the user" in said
    assert_saved(command, "stopped")


@pytest.mark.parametrize("arguments", rest_in_proof([["plan", "--help"], ["train", "--help"], ["--help"]]))
def test_a_command_whose_output_nobody_reads_ends_quietly(command: Command, arguments: list[str]) -> None:
    """As with `planaria plan ... | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.Popen(
        [*PLANARIA, *arguments],
        cwd=command.folder,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    _, said = process.communicate(timeout=DEADLINE_S)
    assert said == ""
    assert process.returncode == 128 + signal.SIGPIPE


# A signal to every process


@pytest.mark.parametrize("number", rest_in_proof([Signals.SIGTERM, Signals.SIGHUP, Signals.SIGINT]))
def test_a_signal_to_every_process_of_a_run_saves_its_state(command: Command, number: Signals) -> None:
    """As systemd sends it to a service, SLURM to a job, a terminal to whoever is in the foreground."""
    command.write_emulated_job(ENDLESS)
    process = command.start("train", "job.toml")
    command.wait_for_step(2)
    for pid in family(process.pid)[1:]:
        os.kill(pid, number)
    os.killpg(process.pid, number)
    _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 128 + number, said
    assert_saved(command)
    events = (command.folder / "runs" / "job" / "events.jsonl").read_text()
    assert "node_lost" not in events
    assert "the coordinator is gone" not in events


@pytest.mark.proof
def test_a_signal_to_every_process_while_they_are_started_ends_none(command: Command) -> None:
    """The process that starts others is itself one that starts."""
    command.write_emulated_job(ENDLESS)
    process = command.start_anew("train", "job.toml")
    assert wait_until(lambda: len(family(process.pid)) > 1)
    for pid in family(process.pid)[1:]:
        os.kill(pid, signal.SIGTERM)
    command.wait_for_step(2)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 128 + signal.SIGTERM
    assert_saved(command)


@pytest.fixture
def hosts(tmp_path: Path, incubator: Incubator) -> Iterator[Hosts]:
    yield Hosts(tmp_path, incubator, min_nodes_per_pipeline=1)
    end_all(tmp_path)


def test_a_signal_to_every_process_of_a_node_is_its_notice(hosts: Hosts) -> None:
    hosts.train()
    for _ in range(NUM_NODES):
        hosts.start_agent()
    hosts.wait_for_step(3)
    leaving = hosts.agents[0]
    node = leaving.node
    leaving.signal_everybody(Signals.SIGTERM)
    assert leaving.wait() == 4, leaving.said
    assert [event["node"] for event in hosts.events("node_released")] == [node]
    assert not hosts.events("node_lost")
    hosts.wait_for_step(hosts.last_step + 3)


@pytest.mark.proof
def test_a_notice_while_workers_are_starting_is_not_forgotten(hosts: Hosts) -> None:
    """Each of them is forked already, and hears nothing yet."""
    hosts.train()
    for _ in range(NUM_NODES):
        hosts.start_agent()
    hosts.wait_for_step(3)
    late = hosts.start_agent()
    node = late.node
    late.signal_everybody(Signals.SIGTERM)
    assert late.wait() == 4, late.said
    assert [event["node"] for event in hosts.events("node_released")] == [node]
    assert not hosts.events("node_lost")
    assert not [event for event in hosts.events("note") if "before it had joined" in event["text"]]
