"""Random schedules of faults keep every promise."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import msgspec
import pytest
from click.testing import CliRunner

from planaria.protocol.messages.records import NodeJoined, NodeLost, Note, RunStatus
from tests.proof import batches
from tests.testkit import dst
from tests.testkit.cluster.cluster import Cluster
from tests.testkit.schedules.devices import on_devices, with_devices_alone
from tests.testkit.schedules.faults import Fault, FaultKind
from tests.testkit.schedules.schedule import Schedule, schedule
from tests.testkit.schedules.search import Failure, error_of, first_line, try_seed
from tests.testkit.schedules.weather import Weather

CORPUS = sorted(Path(__file__).with_name("corpus").glob("*.json"))

HISTORY = """
import hashlib
from tests.testkit.cluster.cluster import Cluster
from tests.testkit.schedules.schedule import schedule
lines = []
for seed in range(7, 12):
    cluster = Cluster(schedule(seed), is_telling=True)
    cluster.run()
    lines += cluster.history
print(hashlib.sha256("\\n".join(lines).encode()).hexdigest(), len(lines))
"""


@pytest.mark.parametrize("seeds", batches(range(120), size=50, kept=20), ids=str)
def test_every_promise_is_kept(seeds: range) -> None:
    found = [failure for seed in seeds if (failure := try_seed(seed)) is not None]
    assert not [f"python -m tests.testkit.dst --replay {failure.seed}: {failure.error}" for failure in found]


def test_a_step_that_is_begun_anew_since_that_is_quicker_is_told_so() -> None:
    path = Path(__file__).with_name("corpus") / "the-last-replica-beside-a-joiner-without-any.json"
    cluster = Cluster(msgspec.json.decode(path.read_bytes(), type=Schedule))
    cluster.run()
    told = [record.text for record in cluster.invariants.records if isinstance(record, Note)]
    assert [text.partition(" (")[0] for text in told if "quicker" in text] == ["step 3 is begun anew"]


@pytest.mark.parametrize("seeds", batches(range(65), size=30, kept=5), ids=str)
def test_every_promise_is_kept_with_stages_on_several_devices(seeds: range) -> None:
    errors = {seed: error_of(_on_devices(schedule(seed), 2 + seed % 3)) for seed in seeds}
    assert not {seed: first_line(error) for seed, error in errors.items() if error is not None}


@pytest.mark.parametrize("seeds", batches(range(65), size=30, kept=5), ids=str)
def test_every_promise_is_kept_where_the_number_of_a_stages_devices_changes(
    seeds: range, changing_devices: list[tuple[int, int]]
) -> None:
    errors = {seed: error_of(_on_devices(schedule(seed), 2 + seed % 3, 0)) for seed in seeds}
    assert not {seed: first_line(error) for seed, error in errors.items() if error is not None}
    assert changing_devices


@pytest.mark.parametrize("seeds", batches(range(63), size=30, kept=3), ids=str)
def test_every_promise_is_kept_when_devices_are_lost_alone(seeds: range) -> None:
    """Also where how many devices a stage is on may change at their loss."""
    errors = {}
    for seed in seeds:
        plain = schedule(seed)
        devices = 1 + seed % 2 if plain.setup.devices_per_node > 1 else 2 + seed % 3
        plain = _on_devices(plain, devices, 0 if seed % 3 == 2 else None)
        faults = with_devices_alone(Random(f"devices {seed}"), plain.setup, plain.faults)
        errors[seed] = error_of(msgspec.structs.replace(plain, faults=tuple(faults)))
    assert not {seed: first_line(error) for seed, error in errors.items() if error is not None}


@pytest.mark.parametrize("seeds", batches(range(65), size=30, kept=5), ids=str)
def test_every_promise_is_kept_where_devices_share_microbatches(seeds: range) -> None:
    """Nodes and devices are lost, with their parts of microbatches; a stage that lost one takes turns meanwhile."""
    errors = {}
    for seed in seeds:
        plain = _on_devices(schedule(seed), 2 + 2 * (seed % 2))
        setup = msgspec.structs.replace(plain.setup, share_microbatches=True, audit=0.0)
        faults = with_devices_alone(Random(f"devices {seed}"), setup, plain.faults) if seed % 3 else plain.faults
        errors[seed] = error_of(msgspec.structs.replace(plain, setup=setup, faults=tuple(faults)))
    assert not {seed: first_line(error) for seed, error in errors.items() if error is not None}


def _on_devices(which: Schedule, devices: int, of_stage: int | None = None) -> Schedule:
    """The same history of nodes with so many times the devices, so many to a stage; None: as many; 0: any. In half of
    them these spread the optimizer's state."""
    setup = on_devices(which.setup, devices, spreads_optimizer=Random(f"optimizer {which.seed}").random() < 0.5)
    return msgspec.structs.replace(
        which, setup=setup if of_stage is None else msgspec.structs.replace(setup, devices_per_stage=of_stage)
    )


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_schedules_that_once_failed_keep_every_promise(path: Path) -> None:
    error = error_of(msgspec.json.decode(path.read_bytes(), type=Schedule))
    assert error is None, first_line(error)


def test_one_seed_gives_one_history() -> None:
    """In one process, and in others whose hashes of strings differ."""
    first, second = Cluster(schedule(7), is_telling=True), Cluster(schedule(7), is_telling=True)
    first.run()
    second.run()
    assert first.history == second.history
    said = {
        subprocess.run(
            [sys.executable, "-c", HISTORY],
            env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": number},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for number in ("1", "2")
    }
    assert len(said) == 1


def test_a_schedule_is_the_same_after_a_file(tmp_path: Path) -> None:
    which = schedule(3)
    assert msgspec.json.decode(msgspec.json.encode(which), type=Schedule) == which


def test_the_command_tries_seeds(tmp_path: Path) -> None:
    result = CliRunner().invoke(dst.dst, ["--seeds", "4", "--jobs", "1", "--folder", str(tmp_path / "failures")])
    assert result.exit_code == 0, result.output
    assert "4 schedules from seed 0 on: 0 failed" in result.output
    assert not (tmp_path / "failures").exists()


def test_the_command_keeps_what_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = Failure(seed=5, error="BrokenPromise: a step was lost", smallest=schedule(5))
    tried = dst.Tried(number=1, failures=[failure], marks=Counter())
    monkeypatch.setattr(dst, "_results", lambda seeds, jobs: iter([tried]))
    result = CliRunner().invoke(dst.dst, ["--seeds", "1", "--folder", str(tmp_path)])
    assert result.exit_code == 1
    assert "1 failed" in result.output
    assert json.loads((tmp_path / "5.json").read_bytes())["seed"] == 5


def test_the_command_repeats_a_file_of_a_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(dst.dst, ["--replay", str(CORPUS[0])])
    assert result.exit_code == 0, result.output
    assert "every promise was kept" in result.output
    monkeypatch.setattr("planaria.protocol.transitions.TRANSITIONS", {})
    result = CliRunner().invoke(dst.dst, ["--replay", "3"])
    assert result.exit_code == 1
    assert "ProtocolError" in result.output


@pytest.mark.parametrize("what", ["no-such-file.json", "Makefile"])
def test_what_cannot_be_repeated_is_refused(what: str) -> None:
    result = CliRunner().invoke(dst.dst, ["--replay", what])
    assert result.exit_code == 2
    assert what in result.output


@pytest.mark.parametrize("later_by", [0, 1, -1])
def test_a_version_of_the_protocol_decides_who_takes_part_not_the_release(later_by: int) -> None:
    """Whoever speaks another one is refused in a line, and the run goes on; another release of the same one joins."""
    setup = msgspec.structs.replace(schedule(0).setup, num_nodes=4, devices_per_node=1, steps=4, waits=False)
    setup = msgspec.structs.replace(setup, devices_per_stage=1, min_nodes=2, fault_tolerance=1, done=0, bad=())
    comes = Fault(kind=FaultKind.RELEASE, at="StepCommitted", nth=1, times=later_by)
    cluster = Cluster(Schedule(seed=1, setup=setup, weather=Weather(), faults=(comes,)))
    assert cluster.run().status is RunStatus.COMPLETED
    joined = [record.node for record in cluster.invariants.records if isinstance(record, NodeJoined)]
    assert (4 in joined) is (later_by == 0)
    assert cluster.invariants.num_refused == (later_by != 0)
    assert not any(isinstance(record, NodeLost) for record in cluster.invariants.records)
