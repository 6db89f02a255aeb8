"""What an earlier version wrote is read, and gone on from to the same bits. See make.py for how the files were made."""

from __future__ import annotations

import json
import shutil
import sqlite3
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from planaria.api import read_profile, reference, train
from planaria.checkpoint.manifest import MANIFEST, newest, read_manifest, weights_sha256
from planaria.checkpoint.state import read_parameters
from planaria.job.errors import UserError
from planaria.job.parse import job_from_json, load_job
from planaria.job.sections.resilience import WhenExhausted
from planaria.protocol.messages import journal as entries
from planaria.protocol.messages.records import RunEnded
from planaria.protocol.run.replay import JournalState
from planaria.runtime.journal.sqlite_journal import SqliteJournal
from planaria.runtime.run_folder.recorder import read_events

pytestmark = pytest.mark.usefixtures("forked_forkservers")
VERSIONS = sorted(path.parent for path in Path(__file__).parent.glob("*/job.toml"))


@pytest.fixture(params=VERSIONS, ids=lambda path: path.name)
def made(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what a version made, as the working folder."""
    folder = shutil.copytree(request.param, tmp_path / "made")
    monkeypatch.chdir(folder)
    return folder


def weights(made: Path) -> str:
    return str(json.loads((made / "run" / "summary.json").read_text())["weights_sha256"])


def test_there_is_a_first_version() -> None:
    assert "first" in [path.name for path in VERSIONS]


def test_job_files_of_before_are_read(made: Path) -> None:
    job = load_job("job.toml")
    assert (job.train.learning_rate, job.train.betas, job.cluster.zones) == (1e-2, (0.9, 0.99), ("a", "b", "c"))
    assert job.resilience.when_exhausted is WhenExhausted.WAIT
    kept = job_from_json((made / "run" / "job.json").read_bytes())
    assert (kept.model, kept.train) == (job.model, job.train)


def test_checkpoints_of_before_are_read(made: Path) -> None:
    folder, manifest, complaints = newest(made / "run" / "checkpoints")
    assert (manifest.step, complaints) == (8, [])
    assert weights_sha256(folder, manifest) == weights(made)
    assert read_parameters(folder, manifest)["transformer.wte.weight"].shape == (259, 4)


def test_journals_of_before_are_read(made: Path) -> None:
    path = made / "run" / "journal.sqlite"
    database = sqlite3.connect(path)
    ((run,),) = database.execute("SELECT DISTINCT run FROM entries")
    database.close()
    journal = SqliteJournal(path, run, "the fingerprint of this version")
    journal.start()
    read = journal.read()
    journal.close()
    assert journal.complaints == []
    newer = {
        entries.JournalEvaluation,
        entries.JournalDistrust,
        entries.JournalVoid,
        entries.JournalDisputes,
        entries.JournalPast,
    }
    assert {type(entry) for entry in read} == set(get_args(entries.AnyEntry)) - newer
    assert JournalState.of(read) is not None


def test_events_of_before_are_read(made: Path) -> None:
    *_, (last, _) = read_events(made / "run" / "events.jsonl")
    assert isinstance(last, RunEnded)
    assert last.steps == 8


def test_profiles_of_before_are_read(made: Path) -> None:
    assert [layer.name for layer in read_profile(made / "run" / "profile.json").layers][1:3] == [
        "transformer.h.0",
        "transformer.h.1",
    ]


@cache
def kernels_are_the_same(version: Path) -> bool:
    """Whether this machine computes the bits of the machine that made the version's files; other CPUs do not."""
    made = json.loads((version / "run" / "summary.json").read_text())["weights_sha256"]
    return reference(load_job(version / "job.toml"), replay=version / "run").weights_sha256 == made


def test_a_run_goes_on_to_the_same_bits(made: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    shutil.rmtree(made / "run" / "checkpoints" / "step-00000008")
    alone = shutil.copytree(made, tmp_path / "alone")
    result = train(load_job("job.toml"), resume=True)
    assert (result.status.value, result.steps) == ("completed", 8)
    if kernels_are_the_same(request.node.callspec.params["made"]):
        assert result.weights_sha256 == weights(alone)
    others = ["cluster.nodes=1", "cluster.zones=[]", "resilience.fault_tolerance=0", f"run.folder={alone}"]
    again = load_job(alone / "job.toml", others)
    assert train(again, resume=True).weights_sha256 == result.weights_sha256


def test_a_run_is_made_longer_and_repeated(made: Path, request: pytest.FixtureRequest) -> None:
    if not kernels_are_the_same(request.node.callspec.params["made"]):
        pytest.skip("this machine's kernels give other bits than those of the machine that began the run")
    job = load_job("job.toml", ["train.steps=10"])
    assert train(job, resume=True).weights_sha256 == reference(job, replay=made / "run").weights_sha256


def test_a_run_does_not_go_on_with_other_data(made: Path) -> None:
    shutil.rmtree(made / "run" / "checkpoints" / "step-00000008")
    with Path("corpus.txt").open("a") as file:
        file.write("one more worm\n")
    for _ in range(2):
        with pytest.raises(UserError, match=r"data grew from 1066 to 1080 tokens"):
            train(load_job("job.toml"), resume=True)


def test_what_a_later_version_wrote_is_refused_in_a_line(made: Path) -> None:
    folder, _, _ = newest(made / "run" / "checkpoints")
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(manifest | {"version": 99, "groups": "elsewhere"}))
    with pytest.raises(UserError, match="has format 99"):
        read_manifest(folder)
    path = made / "run" / "journal.sqlite"
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(UserError, match=r"has format 99.*later version"):
        SqliteJournal(path, "run", "job").start()
    job = json.loads((made / "run" / "job.json").read_text())
    job["train"]["of_tomorrow"] = 1
    with pytest.raises(UserError, match="of_tomorrow") as caught:
        job_from_json(json.dumps(job).encode())
    assert "\n" not in str(caught.value)


def test_other_numbers_are_not_gone_on_from(made: Path) -> None:
    shutil.rmtree(made / "run" / "checkpoints" / "step-00000008")
    folder, _, _ = newest(made / "run" / "checkpoints")
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(manifest | {"version": 2, "numerics_version": 99}))
    with pytest.raises(UserError, match=r"no usable checkpoint.*another job"):
        train(load_job("job.toml"), resume=True)
    (folder / MANIFEST).write_text(json.dumps(manifest | {"numerics_version": 99}))
    with pytest.raises(UserError, match="numerics version 99, and this Planaria has version 1"):
        train(load_job("job.toml"), resume=True)
