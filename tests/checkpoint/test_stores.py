"""Files of checkpoints by folder and by URL: what is kept, what is refused, and what a failing S3 server does to it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest
from safetensors.numpy import save
from tests.s3_server import S3, serving

from planaria.checkpoint import retries
from planaria.checkpoint.manifest import (
    discard,
    expect_checkpoint,
    forget_checkpoint,
    known_places,
    link_all,
    link_checkpoint,
    newest,
    newest_in_store,
    read_manifest,
    retain,
    whole_steps,
    write_manifest,
)
from planaria.checkpoint.retries import StoreError, heard_by
from planaria.checkpoint.store import check_writable, has_checkpoints, store_at
from planaria.data.reading import remote
from planaria.job.errors import UserError
from planaria.protocol.messages.from_worker import SavedGroup, StoreTried, TryOutcome

ROOT = "s3://bucket/runs"


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    with serving() as s3:
        yield s3


@pytest.fixture
def s3(server: S3, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[S3]:
    """The server, without faults, and file systems that ask it and lose patience soon."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(remote.ONCE["s3"]["config_kwargs"], "read_timeout", 1)
    monkeypatch.setattr(retries, "_FIRST_PAUSE_S", 0.01)
    fsspec.filesystem("s3").clear_instance_cache()
    server.fault = lambda method, path: ""
    server.struck.clear()
    yield server
    server.fault = lambda method, path: ""


@pytest.fixture(params=["folder", "file", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, s3: S3) -> str:
    roots = {"folder": str(tmp_path), "file": f"file://{tmp_path}", "memory": f"memory://{tmp_path}", "s3": ROOT}
    return f"{roots[request.param]}/{request.node.name}/run"


def make_checkpoint(place: str, *, replaces: bool = True, value: float = 1.0) -> None:
    """One group with one parameter."""
    data = save({"parameter/w": np.full(3, value, np.float32), "exp_avg/w": np.zeros(3, np.float32)})
    store = store_at(place)
    name = f"group-00000-w0{store.stamp}.safetensors"
    store.write(name, data)
    saved = SavedGroup(group=0, file=name, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    step = int(place[-8:])
    write_manifest(
        place, step=step, job_fingerprint="job", exponents=(1,), saved=(saved,), layers=((0,),), replaces=replaces
    )


def test_files_are_kept(place: str) -> None:
    store = store_at(f"{place}/step-00000001")
    with pytest.raises(FileNotFoundError):
        store.read("a")
    assert not store.has("a")
    assert not has_checkpoints(place)
    tensors = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "empty": np.zeros(0, np.int64)}
    store.write("a", save(tensors))
    assert store.has("a")
    assert store.read("a") == save(tensors)
    assert store.sha256("a") == hashlib.sha256(save(tensors)).hexdigest()
    opened = store.tensors("a")
    assert {name: opened.get_tensor(name).tolist() for name in opened.keys()} == {  # noqa: SIM118
        name: tensor.tolist() for name, tensor in tensors.items()
    }
    assert store_at(place).subfolders() == ["step-00000001"]
    assert has_checkpoints(place)
    store.remove()
    assert not store.has("a")
    store.remove()
    check_writable(place, "named")


@pytest.mark.parametrize("root", [ROOT, "memory://runs"])
def test_of_two_coordinators_one_writes_a_checkpoint(s3: S3, root: str) -> None:
    place = f"{root}/two/step-00000004"
    make_checkpoint(place, replaces=False)
    before = store_at(place).read("manifest.json")
    with pytest.raises(FileExistsError, match=r"another coordinator has written manifest\.json there; it stays"):
        make_checkpoint(place, replaces=False, value=2.0)
    assert store_at(place).read("manifest.json") == before
    discard(place)  # by the one that was too late
    assert read_manifest(place).step == 4
    make_checkpoint(place, replaces=True, value=3.0)
    assert store_at(place).read("manifest.json") != before


def test_an_answer_that_is_lost_is_no_other_coordinator(s3: S3) -> None:
    s3.strike("lose", "PUT", "manifest.json")
    make_checkpoint(f"{ROOT}/lost/step-00000001", replaces=False)
    assert s3.struck
    assert read_manifest(f"{ROOT}/lost/step-00000001").step == 1


def test_the_run_folder_leads_to_them_and_old_ones_go(s3: S3, tmp_path: Path) -> None:
    url = f"{ROOT}/led"
    for step in (1, 2, 3, 4):
        place = f"{url}/step-{step:08d}"
        expect_checkpoint(tmp_path, place)
        make_checkpoint(place)
        link_checkpoint(tmp_path, place)
    store_at(f"{url}/step-00000002").write("group-left-over", b"")
    retain(tmp_path, 2, tmp_path / "step-00000004", tmp_path / "step-00000001", url)
    assert sorted(store_at(url).subfolders()) == ["step-00000001", "step-00000003", "step-00000004"]
    assert whole_steps(tmp_path, 4) == (1, 3, 4)
    assert newest(tmp_path, "job")[0] == newest_in_store(url) == f"{url}/step-00000004"
    expect_checkpoint(tmp_path, f"{url}/step-00000005")
    assert f"{url}/step-00000005" in known_places(tmp_path)
    forget_checkpoint(tmp_path, f"{url}/step-00000005")
    assert f"{url}/step-00000005" not in known_places(tmp_path)
    file = read_manifest(place).groups[0].file
    store_at(place).write(file, store_at(place).read(file)[:-1])
    found, _, complaints = newest(tmp_path, "job")
    assert found == f"{url}/step-00000003"
    assert complaints == [f"checkpoint file {place}/{file} is corrupt: its SHA-256 differs from the manifest's"]
    with pytest.raises(UserError, match="no checkpoint under s3://bucket/runs/nobody"):
        newest_in_store(f"{ROOT}/nobody")


def test_a_folder_that_knew_nothing_of_them_names_those_of_a_store(s3: S3, tmp_path: Path) -> None:
    url = f"{ROOT}/found"
    for step in (1, 2):
        make_checkpoint(f"{url}/step-{step:08d}")
    store_at(f"{url}/step-00000003").write("group-of-one-that-is-not-finished", b"")
    for _ in range(2):
        link_all(tmp_path, url)
        assert whole_steps(tmp_path, 9) == (1, 2)
        assert newest(tmp_path, "job")[0] == f"{url}/step-00000002"
        assert known_places(tmp_path) == {f"{url}/step-{step:08d}" for step in (1, 2, 3)}


@pytest.mark.parametrize(
    ("fault", "method"), [("fail", "PUT"), ("fail", "GET"), ("truncate", "PUT"), ("truncate", "GET"), ("lose", "PUT")]
)
def test_what_fails_is_tried_again(s3: S3, fault: str, method: str) -> None:
    store, data = store_at(f"{ROOT}/again"), os.urandom(100_000)
    s3.strike(fault, method, f"{fault}-{method}", times=2)
    heard: list[StoreTried] = []
    with heard_by(heard.append):
        store.write(f"{fault}-{method}", data)
        assert store.read(f"{fault}-{method}") == data
    assert len(s3.struck) == 2
    assert 2 <= len(heard) <= 3  # a client asks once more by itself where a connection was closed
    assert {said.place for said in heard} == {f"{ROOT}/again"}
    assert [said.outcome for said in heard] == [TryOutcome.AGAIN] * (len(heard) - 1) + [TryOutcome.THROUGH]


def test_a_server_that_does_not_answer_is_given_up(s3: S3) -> None:
    s3.strike("stall", "PUT", "silent", times=9)
    heard: list[StoreTried] = []
    with pytest.raises(StoreError), heard_by(heard.append):
        store_at(f"{ROOT}/silent", patience_s=1.5).write("a", b"x")
    assert s3.struck
    assert not heard or heard[-1].outcome is TryOutcome.GIVEN_UP


def test_what_cannot_be_written_is_said_in_a_line(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"named: files cannot be written.*The specified bucket does not exist"):
        check_writable("s3://no-such-bucket/a", "named")
    s3.strike("deny", "PUT", "", times=9)
    with pytest.raises(UserError, match=r"named: files cannot be written.*Access Denied.*their rights"):
        check_writable(f"{ROOT}/denied", "named")
    assert len(s3.struck) == 1, "another attempt changes nothing"
    with pytest.raises(UserError, match="nobody://a: Protocol not known: nobody"):
        check_writable("nobody://a", "named")
    with pytest.raises(UserError, match=r"is not installed. Install it: pip install gcsfs"):
        check_writable("gs://a/b", "named")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    without = "import sys; sys.modules['s3fs'] = None; from planaria.checkpoint.store import store_at as at\n"
    said = subprocess.run([sys.executable, "-c", without + "at('s3://a/b').has('c')"], capture_output=True, text=True)
    remedy = 'Install it: pip install s3fs (in a clone: pip install -e ".[s3]").'
    assert f"what reads s3:// is not installed. {remedy}" in said.stderr
