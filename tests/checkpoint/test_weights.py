"""Weights of a URL are fetched to this machine; the folder that a run goes on with is the one that it began with."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from tests.s3_server import serving

from planaria.checkpoint import retries
from planaria.checkpoint.retries import heard_by
from planaria.checkpoint.weights import with_weights_here
from planaria.data.reading.sources import DataError
from planaria.job.parse import changed_numbers, parse_job
from planaria.job.settings import Job
from planaria.protocol.messages.from_worker import StoreTried

JOB = """
[model]
type = "gpt2"
[data]
source = "text.txt"
[train]
steps = 1
global_batch = 2
microbatch = 1
sequence_length = 16
[cluster]
nodes = 2
"""


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A folder of weights, elsewhere."""
    folder = tmp_path / "there" / "weights"
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_text(f"{name} of before")
    return folder


def job_of(weights: str, tmp_path: Path) -> Job:
    overrides = [f"model.weights={weights}", f"run.folder={tmp_path / 'runs'}"]
    return parse_job(JOB, overrides=overrides, origin="test")


def names(job: Job) -> set[str]:
    assert job.model.weights is not None
    return {path.name for path in Path(job.model.weights).iterdir()}


def test_a_folder_of_this_machine_is_taken_as_it_is(there: Path, tmp_path: Path) -> None:
    model = with_weights_here(job_of(str(there), tmp_path)).model
    assert (model.weights, model.weights_from) == (str(there), "")


def test_weights_of_a_url_are_fetched(there: Path, tmp_path: Path) -> None:
    job = job_of(f"file://{there}", tmp_path)
    here = with_weights_here(job)
    assert here.model.weights_from == f"file://{there}"
    assert names(here) == {"config.json", "model.safetensors"}
    assert changed_numbers(job, here) == ()


def test_another_host_fetches_them_from_where_the_run_has_them(there: Path, tmp_path: Path) -> None:
    told = with_weights_here(job_of(f"file://{there}", tmp_path))
    run = msgspec.structs.replace(told.run, folder=str(tmp_path / "other-host"))
    here = with_weights_here(msgspec.structs.replace(told, run=run))
    assert here.model.weights is not None
    assert here.model.weights.startswith(str(tmp_path / "other-host"))
    assert names(here) == {"config.json", "model.safetensors"}


def test_a_run_goes_on_with_the_weights_that_it_began_with(there: Path, tmp_path: Path) -> None:
    job = job_of(f"file://{there}", tmp_path)
    earlier = with_weights_here(job)
    shutil.rmtree(there)
    assert with_weights_here(job, earlier) == earlier


def test_weights_come_from_a_store(there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as s3:
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        s3.put(there, "models/weights")
        s3.strike("fail", "GET", "model.safetensors", times=2)
        monkeypatch.setattr(retries, "_FIRST_PAUSE_S", 0.01)
        heard: list[StoreTried] = []
        with heard_by(heard.append):
            here = with_weights_here(job_of("s3://bucket/models/weights/", tmp_path))
        assert [said.outcome.value for said in heard] == ["again", "again", "through"]
        assert {said.doing for said in heard} == {"fetch bucket/models/weights/model.safetensors"}
        assert names(here) == {"config.json", "model.safetensors"}
        with pytest.raises(DataError, match=r"^model.weights = 's3://bucket/none'"):
            with_weights_here(job_of("s3://bucket/none", tmp_path))


def test_a_url_that_nobody_knows_is_told_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^model.weights = 'nowhere://weights' cannot be looked at") as caught:
        with_weights_here(job_of("nowhere://weights", tmp_path))
    assert len(str(caught.value).splitlines()) == 1
