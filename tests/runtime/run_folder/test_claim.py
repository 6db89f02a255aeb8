"""One process at a time writes a run folder; readers stand in nobody's way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from planaria.job.errors import UserError
from planaria.runtime.run_folder import claim

OTHER = """
import sys
from pathlib import Path
from planaria.runtime.run_folder.claim import claimed, say
with claimed(Path(sys.argv[1])):
    say(Path(sys.argv[1]), "starting: the data are read")
    print("there", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "claim.json"


def other(path: Path) -> subprocess.Popen[str]:
    """Another process, which has the claim until it ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", OTHER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    return process


def test_a_second_process_is_refused_until_the_first_is_gone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "READERS_S", 0.1)
    process = other(path)
    try:
        with pytest.raises(UserError, match=f"in use by process {process.pid} on .*--name NAME"), claim.claimed(path):
            pass
        found = claim.claimant(path)
        assert found is not None
        assert (found.pid, found.doing) == (process.pid, "starting: the data are read")
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    assert claim.claimant(path) is None
    with claim.claimed(path):
        found = claim.claimant(path)
        assert found is not None
        assert found.pid == os.getpid()
    assert claim.claimant(path) is None


def test_readers_do_not_keep_anybody_from_claiming(path: Path) -> None:
    with claim.claimed(path):
        pass
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            claim.claimant(path)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(50):
            with claim.claimed(path):
                pass
    finally:
        over.set()
        for reader in readers:
            reader.join()


def test_a_file_system_without_locks_is_no_obstacle(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(claim.errno.ENOLCK, "no locks")

    monkeypatch.setattr(claim.fcntl, "flock", flock)
    with claim.claimed(path):
        assert claim.claimant(path) is None
