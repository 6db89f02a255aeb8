"""The job's token, and what the user is told to run on each node."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest

from planaria.job.errors import UserError
from planaria.job.parse import parse_job
from planaria.job.settings import Job
from planaria.runtime.coordinator.remote_nodes import (
    agents_of,
    call_agents,
    check_token,
    named,
    own_folders_refused,
    read_token,
    share,
    write_token,
)
from planaria.runtime.run_folder.run_folder import RunFolder

TOKEN = "0123456789abcdef"


def make_job(*overrides: str) -> Job:
    text = (
        '[model]\ntype = "gpt2"\n[train]\nsteps = 1\nglobal_batch = 6\nmicrobatch = 1\nsequence_length = 8\n'
        '[cluster]\nnodes = 3\nlauncher = "agents"'
    )
    return parse_job(text, overrides=overrides, origin="test")


def test_a_token_is_kept_from_others(tmp_path: Path) -> None:
    file = tmp_path / "token"
    write_token(file, TOKEN)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_token(file) == TOKEN
    write_token(file, TOKEN[::-1])
    assert read_token(file) == TOKEN[::-1]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_token_that_others_can_read_is_refused(mode: int, tmp_path: Path) -> None:
    file = tmp_path / "token"
    write_token(file, TOKEN)
    file.chmod(mode)
    with pytest.raises(UserError, match=f"mode {mode:o}.*chmod 600"):
        read_token(file)


@pytest.mark.parametrize("text", ["", "short", "x" * 1025, "0123456789abcde\u00e9", "0123456789abcdef\n0123"])
def test_what_is_no_token_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    write_token(file, text)
    with pytest.raises(UserError, match="printable ASCII"):
        read_token(file)
    with pytest.raises(UserError, match="PLANARIA_TOKEN"):
        check_token(text, "PLANARIA_TOKEN")


def test_a_missing_token_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_token(tmp_path / "none")
    (tmp_path / "bytes").write_bytes(b"\xff" * 20)
    with pytest.raises(UserError, match="not text"):
        read_token(tmp_path / "bytes")


def test_the_command_for_each_node_can_be_copied(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "a run")
    note = call_agents(make_job(), folder, "10.0.0.1:29400")
    assert note.text == (
        f"waiting for 3 nodes; run on each: planaria agent --coordinator 10.0.0.1:29400 "
        f"--token-file '{tmp_path}/a run/token'"
    )
    assert ":29400 " in call_agents(make_job(), folder, "0.0.0.0:29400").text
    assert "0.0.0.0" not in call_agents(make_job(), folder, "0.0.0.0:29400").text


def test_nobody_is_told_to_start_what_ray_starts(tmp_path: Path) -> None:
    note = call_agents(make_job('cluster.launcher="ray"'), RunFolder.create(tmp_path, "run"), "0.0.0.0:29400")
    assert note.text == "waiting for 3 nodes; Ray runs an agent on each"


def test_where_every_host_finds_the_coordinator() -> None:
    assert named("0.0.0.0:1") == f"{socket.gethostname()}:1"
    assert named("10.0.0.1:1") == "10.0.0.1:1"


def test_only_a_job_that_says_so_waits_for_agents(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "run")
    assert agents_of(make_job('cluster.launcher="local"'), folder, TOKEN, "mark", ()) is None
    assert agents_of(make_job(), folder, TOKEN, "mark", ()) is not None


def test_what_agents_look_for_in_the_run_folder(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "run")
    share(folder, TOKEN, "mark", "10.0.0.1:29400")
    assert read_token(folder.token) == TOKEN
    assert folder.identity.read_text() == "mark"
    assert folder.address.read_text() == "10.0.0.1:29400\n"


def test_what_hosts_without_the_run_folder_need_of_a_job() -> None:
    for place in ("", "file:///mnt"):
        refused = own_folders_refused(make_job(f"run.checkpoint_folder={place!r}"))
        assert f"run.checkpoint_folder = {place!r}. Set it to the URL of a store" in refused
    assert own_folders_refused(make_job("run.checkpoint_folder='s3://bucket'")) == ""
