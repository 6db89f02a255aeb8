"""What comes from outside while a job runs: strangers on its ports, kills at any moment, damaged files."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from planaria.checkpoint.manifest import MANIFEST
from planaria.job.settings import Job
from planaria.plan.plan import WorkerId
from planaria.protocol.messages.from_worker import Hello
from planaria.protocol.messages.message import PROTOCOL_VERSION, encode
from planaria.protocol.messages.records import AnyRecord, CheckpointSaved, NodeLost, StepCommitted
from planaria.runtime.launch.session import train_job
from planaria.runtime.launch.training.request import TrainRequest
from planaria.runtime.nodes.local_nodes import LauncherError, LocalNodes
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.thresholds import MAX_STRANGERS
from planaria.runtime.wire.control_frames import control_frame
from planaria.runtime.worker.settings import WorkerSettings
from planaria.runtime.worker.transport.frames import data_frame
from planaria.runtime.worker.transport.mailbox import Key, Kind
from tests.e2e.commands import DEADLINE_S, wait_until
from tests.e2e.conftest import Pipelines, Reference, Run
from tests.e2e.jobs import make_emulated_job, make_job
from tests.proof import rest_in_proof


def listening_ports(pid: int) -> list[int]:
    """The TCP ports at which a process listens; none when it is dead."""
    inodes = set()
    lines: list[list[str]] = []
    with contextlib.suppress(OSError):
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(entry).removeprefix("socket:[").removesuffix("]"))
    return [int(fields[1].split(":")[1], 16) for fields in lines if fields[3] == "0A" and fields[9] in inodes]


class Strangers:
    """At every record, says something wrong to every port of the job."""

    def __init__(self, pids: Callable[[], list[int]]) -> None:
        self._pids = pids
        self._open: list[socket.socket] = []
        self.spoken = 0
        self.most_ports = 0
        hello = Hello(version=PROTOCOL_VERSION, token="guess", worker=WorkerId(0), pid=1, data_address="x:1")
        message = b"".join(data_frame(Key(Kind.SUM, 0, 2, 1, 0, 0), (torch.ones(100),)))
        self._words = [
            b"GET / HTTP/1.1\r\n\r\n",
            control_frame(encode(hello)),
            control_frame(encode(msgspec.structs.replace(hello, token="gehe\u00efm"))),
            control_frame(b"\x82\xa4type\xa5hello\xa1x" + b"\x91" * 3900),
            control_frame(b"planaria-data-1 0 guess") + message,
            b"\xff" * 100,
            b"\x00\x00\x00\x20half",
            b"",
        ]

    def __call__(self, record: AnyRecord, time_s: float) -> None:
        ports = [port for pid in [os.getpid(), *self._pids()] for port in listening_ports(pid)]
        words = self._words[self.spoken % len(self._words)]
        for port in ports:
            with contextlib.suppress(OSError):
                sock = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
                self._open.append(sock)
                sock.sendall(words)
        self.spoken += 1
        self.most_ports = max(self.most_ports, len(ports))

    def close(self) -> None:
        for sock in self._open:
            sock.close()


@pytest.fixture
def strangers(worker_pids: Callable[[], list[int]]) -> Iterator[Strangers]:
    made = Strangers(worker_pids)
    yield made
    made.close()


@pytest.mark.proof
def test_strangers_on_every_port_disturb_nothing(
    strangers: Strangers, text: Path, run: Run, reference: Reference
) -> None:
    job = make_job(text, train__steps=12)
    outcome = run(job, "kill:node=3,step=8,at=backward", observers=[strangers])
    outcome.assert_same_bits(reference(job))
    assert [event["node"] for event in outcome.events("node_lost")] == [3]
    assert strangers.spoken > 8
    assert strangers.most_ports >= 7, "the coordinator's and six workers'"


class Crowd:
    """At the first step, hundreds of connections to the coordinator and to one worker, which say nothing."""

    COORDINATOR, WORKER = 1_000, 600

    def __init__(self, pids: Callable[[], list[int]]) -> None:
        self._pids = pids
        self._thread = threading.Thread(target=self._connect, daemon=True)
        self.open: list[socket.socket] = []
        self.have_come = threading.Event()

    def __call__(self, record: AnyRecord, time_s: float) -> None:
        if isinstance(record, StepCommitted) and self._thread.ident is None:
            self._thread.start()

    def _connect(self) -> None:
        """In a thread: the coordinator that accepts them is in this process too."""
        (own,), (worker, *_) = listening_ports(os.getpid()), listening_ports(self._pids()[0])
        for port, count in ((own, self.COORDINATOR), (worker, self.WORKER)):
            for _ in range(count):
                self.open.append(socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S))
        self.have_come.set()

    @property
    def num_closed(self) -> int:
        """Those that the other side has closed."""
        closed = 0
        for sock in self.open:
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                with contextlib.suppress(ConnectionError):
                    assert sock.recv(1) == b""
                closed += 1
        return closed

    def close(self) -> None:
        self._thread.join(DEADLINE_S)
        for sock in self.open:
            sock.close()


@pytest.fixture
def crowd(worker_pids: Callable[[], list[int]]) -> Iterator[Crowd]:
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * Crowd.COORDINATOR + Crowd.WORKER + 1_000
    if most != resource.RLIM_INFINITY and most < needed:
        pytest.skip(f"{needed} open files are needed, and ulimit -Hn is {most}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(files, needed), most))
    made = Crowd(worker_pids)
    yield made
    made.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))


def test_many_that_say_nothing_disturb_nothing(crowd: Crowd, slow_layers: Path, run: Run, reference: Reference) -> None:
    """They are sent away but for a few hundred, which is told of in few lines, and nobody is lost."""
    job = make_emulated_job(slow_layers, cluster__nodes=4, train__steps=100_000, train__lr_schedule="constant")
    seen: list[int] = []
    closed: list[int] = []

    def stop_soon(record: AnyRecord, time_s: float) -> None:
        if isinstance(record, StepCommitted) and crowd.have_come.is_set():
            seen.append(record.step)
            if len(seen) == 3:
                os.kill(os.getpid(), signal.SIGINT)
                closed.append(crowd.num_closed)

    outcome = run(job, observers=[crowd, stop_soon])
    assert closed[0] >= Crowd.COORDINATOR + Crowd.WORKER - 2 * MAX_STRANGERS - 10
    assert not outcome.events("node_lost")
    notes = [event["text"] for event in outcome.events("note")]
    assert any("do not show the job's token" in note for note in notes)
    assert len(notes) < 10, "one line in ten seconds"
    done = outcome.summary["steps"]
    alone = reference(make_emulated_job(slow_layers, train__steps=done, train__lr_schedule="constant"))
    assert outcome.losses == alone.losses
    assert outcome.summary["weights_sha256"] == alone.summary["weights_sha256"]


class Sniper:
    """A thread that kills workers of the run by pid, each a random moment after the first step."""

    def __init__(self, seed: int, count: int, pids: Callable[[], list[int]]) -> None:
        self._draw = random.Random(seed)
        self._count = count
        self._pids = pids
        self._thread = threading.Thread(target=self._shoot, daemon=True)

    def __call__(self, record: AnyRecord, time_s: float) -> None:
        if isinstance(record, StepCommitted) and not self._thread.is_alive() and self._count:
            with contextlib.suppress(RuntimeError):
                self._thread.start()

    def _shoot(self) -> None:
        pause = threading.Event()
        for _ in range(self._count):
            pause.wait(self._draw.uniform(0, 0.06))
            alive = self._pids()
            if alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._draw.choice(alive), signal.SIGKILL)


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(4))
def test_kills_at_random_moments_change_no_bit(
    seed: int, text: Path, run: Run, reference: Reference, worker_pids: Callable[[], list[int]]
) -> None:
    """Up to three of seven nodes die when nobody expects it; four are enough."""
    job = make_job(text, train__steps=12, run__checkpoint_every=3)
    outcome = run(job, observers=[Sniper(seed, 3, worker_pids)])
    outcome.assert_same_bits(reference(job))


def test_a_death_while_the_others_are_started_changes_no_bit(
    text: Path, run: Run, reference: Reference, nodes: LocalNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher hears of it while it waits for the next worker's pid; nobody may wait for the dead one."""
    spawn = nodes.spawn

    def spawn_and_kill_the_first(settings: WorkerSettings) -> int:
        pid = spawn(settings)
        if settings.worker == 0:
            os.kill(pid, signal.SIGKILL)
            assert wait_until(lambda: not Path(f"/proc/{pid}").exists())
        return pid

    monkeypatch.setattr(nodes, "spawn", spawn_and_kill_the_first)
    job = make_job(text, cluster__nodes=5)
    outcome = run(job)
    outcome.assert_same_bits(reference(job))
    assert [event["node"] for event in outcome.events("node_lost")] == [0]
    assert outcome.summary["live_nodes"] == 4


def test_a_run_whose_nodes_all_die_says_what_is_left(
    text: Path, run: Run, worker_pids: Callable[[], list[int]]
) -> None:
    def kill_all_after(kind: type[AnyRecord]) -> Callable[[AnyRecord, float], None]:
        def observe(record: AnyRecord, time_s: float) -> None:
            if isinstance(record, kind):
                for pid in worker_pids():
                    os.kill(pid, signal.SIGKILL)

        return observe

    job = make_job(text, cluster__nodes=4, run__checkpoint_every=0)
    outcome = run(job, observers=[kill_all_after(StepCommitted)])
    assert outcome.summary["status"] == "failed"
    assert "no checkpoint" in outcome.summary["message"]
    job = make_job(text, cluster__nodes=4, run__checkpoint_every=2, train__steps=100)
    with_checkpoint = run(job, observers=[kill_all_after(CheckpointSaved)])
    assert with_checkpoint.summary["status"] == "exhausted"
    saved = with_checkpoint.events("checkpoint_saved")[-1]["step"]
    assert f"Checkpoint: step {saved}." in with_checkpoint.summary["message"]


def test_a_run_ends_with_an_error_when_the_forkserver_dies(text: Path, tmp_path: Path) -> None:
    """Its workers die with it; the run ends with an error that says where to look."""
    pids: list[int] = []

    with LocalNodes(tmp_path / "log", "gpt2") as local:

        def kill_forkserver(record: AnyRecord, time_s: float) -> None:
            if isinstance(record, StepCommitted) and record.step == 2:
                pids.extend(local.pids())
                os.kill(parent(pids[0]), signal.SIGKILL)

        folder = RunFolder.create(tmp_path, "run")
        with pytest.raises(LauncherError, match="log"):
            job = make_job(text, cluster__nodes=4)
            train_job(TrainRequest(job=job, folder=folder, observers=(kill_forkserver,)), local)
        assert len(pids) == 4
        assert wait_until(lambda: not any(is_alive(pid) for pid in pids))


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def damage(checkpoint: Path) -> str:
    """Flip a bit in one file of a checkpoint; returns its name."""
    victim = sorted(checkpoint.glob("*.safetensors"))[1]
    data = bytearray(victim.read_bytes())
    data[-3] ^= 4
    victim.write_bytes(data)
    return victim.name


@pytest.mark.tampers
def test_a_damaged_last_checkpoint_is_told_of_and_the_one_before_is_used(
    text: Path, run: Run, reference: Reference
) -> None:
    job = make_job(text, train__steps=7, run__checkpoint_every=2, run__keep_checkpoints=2)
    exhausted = run(job, *(f"kill:node={node},step=5,at=vote" for node in (0, 1, 3, 4)))
    assert exhausted.summary["status"] == "exhausted"
    checkpoints = exhausted.result.folder / "checkpoints"
    newest = sorted(checkpoints.iterdir())[-1]
    name = damage(newest)
    one = msgspec.structs.replace(job, run=msgspec.structs.replace(job.run, checkpoint_every=1, keep_checkpoints=1))
    resumed = run(one, "kill:node=2,step=6,at=sync", resume=exhausted.result.folder)
    resumed.assert_same_bits(reference(job))
    (note,) = [event for event in resumed.events("note") if "is given up" not in event["text"]]
    assert note["level"] == "warning"
    assert name in note["text"]


@pytest.mark.proof
@pytest.mark.tampers
def test_a_restore_from_a_damaged_checkpoint_is_not_trained_on(
    text: Path, run: Run, first_pipelines: Callable[[Job], Pipelines]
) -> None:
    """Better no model than a wrong one."""
    job = make_job(text, cluster__nodes=8, run__checkpoint_every=2)
    names: list[str] = []

    def damage_it(record: AnyRecord, time_s: float) -> None:
        if isinstance(record, CheckpointSaved) and not names:
            names.append(damage(Path(record.folder)))

    kills = [f"kill:node={stages[0][0]},step=4,at=backward" for stages in first_pipelines(job)]
    outcome = run(job, *kills, observers=[damage_it])
    assert outcome.summary["status"] == "failed"
    assert names[0] in outcome.summary["message"]


@pytest.mark.parametrize("at", rest_in_proof([".safetensors", MANIFEST]))
def test_a_kill_in_every_step_of_a_checkpoint_changes_no_bit(
    at: str, text: Path, run: Run, reference: Reference, worker_pids: Callable[[], list[int]]
) -> None:
    """Somebody who is to write a part of it dies as soon as the first part, or the manifest, is there."""
    job = make_job(text, run__checkpoint_every=2)
    watcher = Watcher(at, worker_pids)
    outcome = run(job, observers=[watcher])
    outcome.assert_same_bits(reference(job))
    assert watcher.killed is not None
    assert [event["node"] for event in outcome.events("node_lost")]


class Watcher:
    """Kills a worker when a file with this ending appears in the first checkpoint."""

    def __init__(self, ending: str, pids: Callable[[], list[int]]) -> None:
        self._ending = ending
        self._pids = pids
        self.killed: int | None = None
        self._folder: Path | None = None

    def __call__(self, record: AnyRecord, time_s: float) -> None:
        if isinstance(record, StepCommitted) and record.step == 2:
            threading.Thread(target=self._watch, daemon=True).start()
        if isinstance(record, NodeLost):
            self.killed = self.killed or record.node

    def _watch(self) -> None:
        pids = self._pids()
        runs = [Path(os.readlink(f"/proc/{pid}/fd/1")).parent.parent for pid in pids[:1]]
        folder = runs[0] / "checkpoints" / "step-00000002"
        assert wait_until(lambda: folder.exists() and any(p.name.endswith(self._ending) for p in folder.iterdir()))
        os.kill(pids[3], signal.SIGKILL)
