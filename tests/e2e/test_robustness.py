"""Nodes that run out of memory, layers that raise on one node alone, disks that are full, state that is damaged on its
way, and kills in phases that no other test strikes: on real processes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from planaria.checkpoint.manifest import MANIFEST
from planaria.job.settings import Job
from planaria.protocol.messages.journal import JournalCommit
from planaria.protocol.messages.journal_chain import decode_written
from planaria.protocol.messages.records import AnyRecord, CheckpointSaved, StepCommitted
from planaria.runtime.launch.reference import train_reference
from planaria.runtime.nodes.local_nodes import LocalNodes
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.worker.settings import WorkerSettings
from tests.e2e.commands import wait_until
from tests.e2e.conftest import Pipelines, Reference, Run
from tests.e2e.jobs import Outcome, make_job
from tests.proof import rest_in_proof

WIRE = """
from planaria.runtime.worker.transport import sync, transport

frame = transport.data_frame

def flipped(key, tensors, elsewhere=None):
    \"\"\"A bit changes on its way.\"\"\"
    pieces = frame(key, tensors, elsewhere)
    if len(pieces) > 1 and armed("flip-" + key.kind):
        payload = bytearray(pieces[-1])
        payload[len(payload) // 2] ^= 4
        pieces[-1] = memoryview(payload)
    return pieces

transport.data_frame = flipped
start = sync.Sync.start

def killed(self, group, epoch, round_):
    if armed(f"sync-{round_}"):
        os.kill(os.getpid(), 9)
    start(self, group, epoch, round_)

sync.Sync.start = killed
"""
"""Beside the layers: what befalls messages and sums."""

LAYERS = """
import os
import torch
from torch import nn

HERE = os.path.dirname(__file__)

def armed(name):
    \"\"\"Whether it is to happen here: the first process that finds the file takes it away.\"\"\"
    try:
        os.rename(os.path.join(HERE, name), os.path.join(HERE, name + ".taken"))
    except FileNotFoundError:
        return os.path.exists(os.path.join(HERE, name + ".all"))
    return True

class Back(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        if armed("backward"):
            raise KeyError("too fragile")
        if armed("backward-memory"):
            torch.empty(1 << 60)
        return gradient

class Fragile(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 16)
    def __deepcopy__(self, memo):
        if armed("build"):
            raise KeyError("too fragile")
        made = Fragile()
        made.load_state_dict(self.state_dict())
        return made
    def forward(self, x):
        if armed("kill"):
            os.kill(os.getpid(), 9)
        if armed("forward"):
            raise KeyError("too fragile")
        if armed("forward-memory"):
            torch.empty(1 << 60)
        if armed("kernel-memory"):
            group = os.path.join(HERE, "group")
            with open(os.path.join(group, "cgroup.procs"), "w") as procs:
                procs.write(str(os.getpid()))
            bytearray(b"x") * (256 << 20)
        if armed("python-memory"):
            bytearray(1 << 60)
        return Back.apply(self.inner(x))

def layers():
    if armed("load"):
        raise KeyError("too fragile")
    return [nn.Embedding(259, 16), nn.Linear(16, 16), Fragile(), nn.Linear(16, 16), nn.Linear(16, 259)]
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A folder with a model whose third layer fails where a file says so."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / f"mine_{tmp_path.name}.py").write_text(LAYERS + WIRE)
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """What one process makes of the job, with the same layers from a module that changes nothing else."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "never_armed.py").write_text(LAYERS)
    known: dict[bytes, Outcome] = {}

    def train(job: Job) -> Outcome:
        plain = msgspec.structs.replace(job, model=msgspec.structs.replace(job.model, type="never_armed:layers"))
        key = msgspec.json.encode((plain.data, plain.train))
        if key not in known:
            into = RunFolder.create(folder, f"run-{len(known)}")
            known[key] = Outcome(train_reference(plain, into, import_path=folder))
        return known[key]

    return train


def job_of(mine: Path, text: Path, **changes: Any) -> Job:
    (module,) = mine.glob("*.py")
    return make_job(text, model__type=f"{module.stem}:layers", model__config={}, **changes)


def arm(folder: Path, name: str, after: int) -> Callable[[AnyRecord, float], None]:
    """Makes it happen somewhere once the step `after` is committed."""

    def observe(record: AnyRecord, time_s: float) -> None:
        if isinstance(record, StepCommitted) and record.step == after:
            (folder / name).touch()

    return observe


# Layers that raise


@pytest.mark.parametrize("at", rest_in_proof(["build", "backward.all", "forward", "backward", "forward.all"], kept=2))
def test_what_a_layer_raises_ends_the_job_with_one_message(at: str, mine: Path, text: Path, run: Run) -> None:
    """On one node or on several at the same moment; a layer is built anew after the loss of one of its three owners."""
    faults = ["kill:node=5,step=12,at=forward"] if at == "build" else []
    # Under other policies those that are left may go on without building anything.
    job = job_of(mine, text, train__steps=24, **({} if faults else {"cluster__nodes": 4}))
    outcome = run(job, *faults, observers=[arm(mine, at, after=2)], import_path=mine)
    assert outcome.result.status.value == "failed"
    message = outcome.summary["message"]
    assert message.count("Traceback") == 1, message
    assert message.count("KeyError: 'too fragile'\n") == 1, message
    assert message.startswith("layer '2.Fragile': ")
    assert f"{next(mine.glob('*.py'))}" in message
    assert len(outcome.events("run_ended")) == 1
    assert [event["node"] for event in outcome.events("node_lost")] == [5] * len(faults)
    logs = [path.read_text() for path in outcome.result.folder.glob("logs/worker-*.log")]
    assert any("ERROR an error, " in log and "KeyError: 'too fragile'\n" in log for log in logs)


def test_a_model_that_cannot_be_built_is_told_though_its_workers_end_before_anybody_listens(
    mine: Path, text: Path, run: Run, nodes: LocalNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawn = nodes.spawn

    def spawn_and_wait(settings: WorkerSettings) -> int:
        (mine / "load.all").touch()
        pid = spawn(settings)
        if settings.worker < 2:
            assert wait_until(lambda: not Path(f"/proc/{pid}").exists())
        return pid

    monkeypatch.setattr(nodes, "spawn", spawn_and_wait)
    outcome = run(job_of(mine, text, cluster__nodes=4), import_path=mine)
    assert outcome.result.status.value == "failed"
    message = outcome.summary["message"]
    assert message.count("KeyError: 'too fragile'\n") == 1, message
    assert not outcome.events("node_lost")


# Damage


@pytest.mark.proof
@pytest.mark.parametrize("kind", ["a", "m", "g"])
def test_what_changes_on_its_way_is_not_used_and_its_step_is_begun_anew(
    kind: str, mine: Path, text: Path, run: Run, alone: Reference
) -> None:
    job = job_of(mine, text, cluster__nodes=4, train__steps=24)
    outcome = run(job, observers=[arm(mine, f"flip-{kind}", after=2)], import_path=mine)
    (note,) = outcome.events("note")
    assert "arrived damaged at worker" in note["text"]
    assert note["text"].endswith("is begun anew")
    assert not outcome.events("node_lost")
    outcome.assert_same_bits(alone(job))


@pytest.mark.proof
def test_state_that_changes_on_its_way_is_sent_again(mine: Path, text: Path, run: Run, alone: Reference) -> None:
    job = job_of(mine, text, train__steps=24)
    outcome = run(job, "kill:node=6,step=12,at=forward", observers=[arm(mine, "flip-t", after=2)], import_path=mine)
    (note,) = outcome.events("note")
    assert note["text"].startswith("the state of layer")
    assert note["text"].endswith("sends it again")
    assert [event["node"] for event in outcome.events("node_lost")] == [6]
    outcome.assert_same_bits(alone(job))


# Memory


@pytest.mark.proof
@pytest.mark.parametrize("at", ["sync", "load", "forward", "backward", "recv", "vote", "apply"])
def test_a_node_without_memory_is_a_lost_node(at: str, text: Path, run: Run, reference: Reference) -> None:
    """A step has shown that its load fits elsewhere, so the others go on."""
    job = make_job(text)
    outcome = run(job, f"memory:node=0,step=3,at={at}")
    outcome.assert_same_bits(reference(job))
    (lost,) = outcome.events("node_lost")
    assert lost["node"] == 0
    assert lost["cause"].startswith("out of memory ")
    assert "1.1 GB more asked for" in lost["cause"]
    assert " planned)" in lost["cause"]


@pytest.mark.parametrize("what", rest_in_proof(["python-memory", "backward-memory", "forward-memory"]))
def test_a_layer_that_wants_too_much_on_one_node_costs_that_node(
    what: str, mine: Path, text: Path, run: Run, alone: Reference
) -> None:
    job = job_of(mine, text, cluster__nodes=5, train__steps=24)
    outcome = run(job, observers=[arm(mine, what, after=2)], import_path=mine)
    assert outcome.result.status.value == "completed"
    (lost,) = outcome.events("node_lost")
    assert lost["cause"].startswith(f"out of memory in the {what.partition('-')[0].replace('python', 'forward')} of")
    assert "layer '2.Fragile'" in lost["cause"]
    outcome.assert_same_bits(alone(job))


CGROUP = Path("/sys/fs/cgroup/memory/planaria-test")


@pytest.fixture
def small_cgroup(mine: Path) -> Iterator[Path]:
    """A group of processes with 64 MB, beyond which the kernel kills."""
    try:
        CGROUP.mkdir()
        (CGROUP / "memory.limit_in_bytes").write_text(str(64 << 20))
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    (mine / "group").symlink_to(CGROUP)
    yield CGROUP
    CGROUP.rmdir()


@pytest.mark.engines  # nothing runs beside these: cgroups of version 1 leave it to a count of the whole machine
@pytest.mark.usefixtures("small_cgroup")
def test_a_node_that_the_kernel_kills_for_lack_of_memory(mine: Path, text: Path, run: Run, alone: Reference) -> None:
    job = job_of(mine, text, cluster__nodes=5, train__steps=24)
    outcome = run(job, observers=[arm(mine, "kernel-memory", after=2)], import_path=mine)
    (lost,) = outcome.events("node_lost")
    assert lost["cause"].startswith("killed by the kernel for lack of memory (")
    outcome.assert_same_bits(alone(job))


@pytest.mark.proof
def test_a_layer_that_wants_too_much_everywhere_ends_the_job(
    mine: Path, text: Path, run: Run, alone: Reference
) -> None:
    job = job_of(mine, text, train__steps=24)
    outcome = run(job, observers=[arm(mine, "forward-memory.all", after=2)], import_path=mine)
    assert outcome.result.status.value == "failed"
    message = outcome.summary["message"]
    assert "ran out of memory within 10 steps" in message
    assert "Add nodes and go on by --resume" in message
    assert len(outcome.events("node_lost")) == 1, "there is no cascade"
    assert outcome.events("checkpoint_saved")[-1]["step"] == outcome.events("step_committed")[-1]["step"]
    (mine / "forward-memory.all").unlink()
    run(job, resume=outcome.result.folder, import_path=mine).assert_same_bits(alone(job))


# Disks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 4 MB, in which the run's folder is."""
    folder = tmp_path / "run-0"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


class Filler:
    """Between two steps, the disk is full to the last byte."""

    def __init__(self, folder: Path, first: int, last: int) -> None:
        self._folder = folder
        self._first, self._last = first, last

    def __call__(self, record: AnyRecord, time_s: float) -> None:
        if not isinstance(record, StepCommitted):
            return
        if record.step == self._first:
            with (self._folder / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(512))
        if record.step == self._last:
            (self._folder / "filler").unlink()


def test_a_disk_that_is_full_for_a_while_stops_nothing_and_is_said(
    small_disk: Path, text: Path, run: Run, reference: Reference, caplog: pytest.LogCaptureFixture
) -> None:
    """Checkpoints, events, metrics and the journal are on it; what had to wait is written when there is room."""
    job = make_job(text, train__steps=24, run__checkpoint_every=1)
    # Each file has some room in its last page: so many steps fill it.
    outcome = run(job, "kill:node=2,step=6,at=backward", observers=[Filler(small_disk, 3, 19)])
    outcome.assert_same_bits(reference(job))
    assert any("No space left on device" in note["text"] for note in outcome.events("note"))
    assert [event["step"] for event in outcome.events("step_committed")] == list(range(1, 25))
    assert outcome.events("checkpoint_saved")[-1]["step"] == 24
    assert "planaria.runtime.run_folder.lines" in {record.name for record in caplog.records}
    assert not list(small_disk.rglob("*.part"))
    with sqlite3.connect(small_disk / "journal.sqlite") as journal:
        entries = [decode_written(body) for (body,) in journal.execute("SELECT entry FROM entries ORDER BY number")]
    assert [entry.commit.step for entry in entries if isinstance(entry, JournalCommit)] == list(range(1, 25))


@pytest.mark.proof
def test_a_half_written_newest_checkpoint_is_named_and_the_one_before_is_used(
    text: Path, run: Run, reference: Reference
) -> None:
    """As a host leaves it that loses its power: some files, the manifest not yet renamed."""
    job = make_job(text, train__steps=7, run__checkpoint_every=2, run__keep_checkpoints=2)
    exhausted = run(job, *(f"kill:node={node},step=5,at=vote" for node in (0, 1, 3, 4)))
    assert exhausted.summary["status"] == "exhausted"
    newest = sorted((exhausted.result.folder / "checkpoints").iterdir())[-1]
    (newest / MANIFEST).rename(newest / (MANIFEST + ".part"))
    resumed = run(job, resume=exhausted.result.folder)
    resumed.assert_same_bits(reference(job))
    (note,) = [event for event in resumed.events("note") if "is given up" not in event["text"]]
    assert newest.name in note["text"]
    assert "was not finished" in note["text"]


# Kills where no other test strikes


@pytest.mark.proof
@pytest.mark.parametrize(
    ("schedule", "at"),
    [
        pytest.param("zb-h1", "weight"),
        pytest.param("zb-h2", "backward"),
        *(pytest.param("zb-h1", at) for at in ("forward", "backward", "sync", "apply")),
        pytest.param("zb-h2", "weight"),
    ],
)
def test_a_kill_at_each_instruction_of_split_backwards_changes_no_bit(
    schedule: str, at: str, text: Path, run: Run, reference: Reference
) -> None:
    job = make_job(text, cluster__schedule=schedule)
    outcome = run(job, f"kill:node=6,step=2,at={at}")
    outcome.assert_same_bits(reference(job))
    assert len(outcome.result.recoveries) == 1


@pytest.mark.proof
@pytest.mark.parametrize("round_", [1, 0, 2])
def test_a_kill_in_each_round_of_sums_changes_no_bit(
    round_: int, mine: Path, text: Path, run: Run, alone: Reference
) -> None:
    job = job_of(mine, text, cluster__nodes=5, train__steps=24)
    outcome = run(job, observers=[arm(mine, f"sync-{round_}", after=2)], import_path=mine)
    assert len(outcome.events("node_lost")) == 1
    outcome.assert_same_bits(alone(job))


def test_a_kill_while_the_profile_is_measured_costs_no_node(mine: Path, text: Path, run: Run) -> None:
    (mine / "kill").touch()
    outcome = run(job_of(mine, text, cluster__nodes=4), import_path=mine)
    assert not (mine / "kill").exists(), "it was killed"
    assert outcome.summary["status"] == "completed"
    assert not outcome.events("node_lost")


@pytest.mark.proof
@pytest.mark.parametrize("at", ["apply", "sync", "vote"])
def test_all_holders_of_a_layer_but_one_die_around_the_commit(
    at: str, text: Path, run: Run, reference: Reference, first_pipelines: Callable[[Job], Pipelines]
) -> None:
    """Some have applied the step and some have not."""
    job = make_job(text, cluster__nodes=8)
    holders = [stages[0][0] for stages in first_pipelines(job)]
    assert len(holders) >= 3
    outcome = run(job, *(f"kill:node={node},step=3,at={at}" for node in holders[1:]))
    outcome.assert_same_bits(reference(job))
    assert sorted(event["node"] for event in outcome.events("node_lost")) == sorted(holders[1:])


@pytest.mark.proof
def test_all_die_but_one_replica_of_each_layer(
    text: Path, run: Run, reference: Reference, first_pipelines: Callable[[Job], Pipelines]
) -> None:
    job = make_job(text, cluster__nodes=8, resilience__fault_tolerance=0)
    kept = {worker for worker, _, _ in first_pipelines(job)[0]}
    dead = sorted(set(range(8)) - kept)
    outcome = run(job, *(f"kill:node={node},step=3,at=backward" for node in dead))
    outcome.assert_same_bits(reference(job))
    assert outcome.summary["live_nodes"] == len(kept)


@pytest.mark.proof
def test_one_recovery_after_another_is_struck(text: Path, run: Run, reference: Reference) -> None:
    """Each dies while the state moves that the loss before it made necessary."""
    job = make_job(text, cluster__nodes=9)
    kills = [f"kill:node={node},step=2,at=transfer" for node in (1, 3, 4, 8)]
    outcome = run(job, "kill:node=0,step=2,at=forward", *kills)
    outcome.assert_same_bits(reference(job))
    assert len(outcome.events("node_lost")) >= 2


@pytest.mark.proof
def test_a_kill_at_the_very_end(
    text: Path, run: Run, reference: Reference, worker_pids: Callable[[], list[int]]
) -> None:
    """The last checkpoint is whole, and the others are told to end."""

    def kill(record: AnyRecord, time_s: float) -> None:
        if isinstance(record, CheckpointSaved):
            with contextlib.suppress(ProcessLookupError):  # it may have ended in time
                os.kill(worker_pids()[-1], signal.SIGKILL)

    job = make_job(text, cluster__nodes=5)
    run(job, observers=[kill]).assert_same_bits(reference(job))
