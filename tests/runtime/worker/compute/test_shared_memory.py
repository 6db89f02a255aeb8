"""Sums read in place: what the owner wrote is seen, what is mapped outlives it, what cannot be mapped is an error."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Iterator

import pytest
import torch

from planaria.runtime.worker.compute.shared_memory import SharedReader, SharedVector


def test_what_the_owner_writes_is_seen() -> None:
    vector, reader = SharedVector(5, torch.float64), SharedReader()
    seen = reader.read(1, 0, vector.address(), torch.float64)
    assert seen is not None
    assert seen.tolist() == [0] * 5
    vector.tensor.copy_(torch.arange(5))
    assert seen.tolist() == [0, 1, 2, 3, 4]
    again = reader.read(1, 0, vector.address(), torch.float64)
    assert again is seen, "mapped once"


def test_a_new_vector_of_the_same_owner_is_another() -> None:
    """Even when it gets the file descriptor of the old one."""
    reader = SharedReader()
    old = SharedVector(3, torch.float32)
    old.tensor.fill_(1)
    address = old.address()
    assert reader.read(1, 0, address, torch.float32) is not None
    del old
    new = SharedVector(3, torch.float32)
    new.tensor.fill_(2)
    assert int(new.address()[1]) == int(address[1]), "the descriptor is used again"
    seen = reader.read(1, 0, new.address(), torch.float32)
    assert seen is not None
    assert seen.tolist() == [2, 2, 2]


class Owner:
    """A process that has a vector of ones and does nothing."""

    def __init__(self) -> None:
        vector = SharedVector(4, torch.float64)
        vector.tensor.fill_(1)
        self.address = vector.address()
        self._pid: int | None = os.fork()
        if not self._pid:
            signal.pause()
            os._exit(0)
        self.address[0] = self._pid

    def kill(self) -> None:
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = None


@pytest.fixture
def owner() -> Iterator[Owner]:
    made = Owner()
    yield made
    made.kill()


def test_what_is_mapped_outlives_its_owner(owner: Owner) -> None:
    seen = SharedReader().read(1, 0, owner.address, torch.float64)
    owner.kill()
    assert seen is not None
    assert seen.tolist() == [1, 1, 1, 1]


def test_an_owner_that_died_before_has_nothing(owner: Owner) -> None:
    owner.kill()
    assert SharedReader().read(1, 0, owner.address, torch.float64) is None


def test_an_owner_that_nobody_has_buried_yet_has_nothing_either(owner: Owner) -> None:
    """Of a zombie, whoever is not root may not even look whether there is a file."""
    os.kill(int(owner.address[0]), signal.SIGKILL)
    os.waitid(os.P_PID, int(owner.address[0]), os.WEXITED | os.WNOWAIT)
    child = os.fork()
    if not child:
        status = 1
        with contextlib.suppress(OSError):
            if not os.getuid():
                os.setuid(65534)
            status = SharedReader().read(1, 0, owner.address, torch.float64) is not None
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def test_a_file_that_may_not_be_opened_is_an_error_and_not_a_death(owner: Owner) -> None:
    if os.getuid():
        pytest.skip("only root can become somebody who may not")
    child = os.fork()
    if not child:
        status = 1
        try:
            os.setuid(65534)
            SharedReader().read(1, 0, owner.address, torch.float64)
        except PermissionError:
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def test_too_many_open_files_is_an_error_and_not_a_death() -> None:
    """Taken for a death, it would be waited for without end."""
    vector, reader = SharedVector(4, torch.float64), SharedReader()
    address = vector.address()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open("/dev/null", os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            reader.read(1, 0, address, torch.float64)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert reader.read(1, 0, address, torch.float64) is not None


def test_nothing_is_left_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    reader = SharedReader()
    vectors = [SharedVector(10, torch.float32) for _ in range(5)]
    for item, vector in enumerate(vectors):
        reader.read(item % 2, item, vector.address(), torch.float32)
    reader.keep_only({0})
    reader.keep_only(set())
    del vector
    vectors.clear()
    assert len(os.listdir("/proc/self/fd")) == before
