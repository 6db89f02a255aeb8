"""Memory of GPUs that others of the host read: when it is shared, and that torch is asked as it defines. It has not run
on a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from planaria.runtime.worker.compute.device import cuda_memory
from planaria.runtime.worker.compute.device.cuda_memory import CudaVector, may_take_files, opened, shared_name

CPU = torch.device("cpu")
SHARE = (b"handle", 32, 0, b"counter", 3, b"event", True)


class Machine:
    """GPUs that there are not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reach = True
        self.settings: list[str] = []
        for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
            monkeypatch.delenv(name, raising=False)
        properties = lambda place: type("Properties", (), {"uuid": f"gpu-{place}"})()  # noqa: E731
        monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
        monkeypatch.setattr("torch.cuda.get_device_properties", properties)
        monkeypatch.setattr("torch.cuda.can_device_access_peer", lambda one, other: self.reach)
        monkeypatch.setattr("torch.cuda.memory._set_allocator_settings", self.settings.append)

    def name(self) -> str:
        shared_name.cache_clear()
        return shared_name()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    yield Machine(monkeypatch)
    shared_name.cache_clear()


def test_gpus_that_reach_each_other_share_their_memory_by_files(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = machine.name()
    assert first == machine.name() != ""
    assert machine.settings == ["expandable_segments:True"] * 2
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    assert machine.name() not in (first, "")


def test_what_the_user_sets_for_memory_stays(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    assert machine.name()
    assert machine.settings == ["max_split_size_mb:64,expandable_segments:True"]
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:False")
    assert machine.name() == ""


@pytest.mark.parametrize("lacking", ["reach", "files", "gpus", "yama"])
def test_nothing_is_shared_where_it_cannot_be_read(
    lacking: str, machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    if lacking == "reach":
        machine.reach = False
    elif lacking == "files":
        monkeypatch.setattr(cuda_memory, "may_take_files", lambda: False)
    elif lacking == "gpus":
        monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    else:
        (tmp_path / "scope").write_text("2\n")
        monkeypatch.setattr(cuda_memory, "_YAMA", tmp_path / "scope")
    assert machine.name() == ""


def test_files_are_left_as_they_were() -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    may_take_files()
    assert sorted(os.listdir("/proc/self/fd")) == before


class Shared:
    """Torch's sharing, without a GPU behind it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.released: list[tuple[Any, ...]] = []
        self.storage = torch.arange(8.0).untyped_storage()
        self.error = ""
        monkeypatch.setattr(torch.UntypedStorage, "_share_cuda_", lambda storage: (0, *SHARE))
        monkeypatch.setattr(torch.UntypedStorage, "_new_shared_cuda", self.opens)
        monkeypatch.setattr(torch.UntypedStorage, "_release_ipc_counter_cuda", lambda *of: self.released.append(of))
        monkeypatch.setattr("torch.cuda.device", lambda place: nullcontext())

    def opens(self, *asked: Any) -> torch.UntypedStorage:
        self.asked.append(asked)
        if self.error:
            raise RuntimeError(self.error)
        return self.storage


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Shared:
    return Shared(monkeypatch)


def test_a_vector_is_told_and_opened(shared: Shared) -> None:
    vector = CudaVector(8, torch.float32, CPU)
    assert torch.equal(vector.address(), vector.address())
    found = opened(vector.address(), torch.float32, CPU)
    assert found is not None
    assert torch.equal(found, torch.arange(8.0))
    assert shared.released == [(b"counter", 3)]
    handle, size, offset, _, _, event, waits = SHARE
    assert shared.asked == [(None, handle, size, offset, b"/planaria-has-no-counter", 0, event, waits)]
    assert opened(vector.address(), torch.uint8, CPU).numel() == 32  # type: ignore[union-attr]


def test_an_empty_vector_has_an_address_too(shared: Shared) -> None:
    vector = CudaVector(0, torch.float64, CPU)
    assert vector.tensor.numel() == 0
    assert opened(vector.address(), torch.float64, CPU).numel() == 0  # type: ignore[union-attr]


def test_memory_of_who_has_ended_is_none_and_else_it_is_said_what_to_do(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, shared.error = CudaVector(8, torch.float32, CPU).address(), "pidfd_getfd: Operation not permitted"
    with pytest.raises(RuntimeError, match=r"pidfd_getfd: Operation not permitted. Set cluster.transport = .tcp."):
        opened(address, torch.float32, CPU)
    monkeypatch.setattr(cuda_memory, "has_ended", lambda pid: True)
    assert opened(address, torch.float32, CPU) is None
