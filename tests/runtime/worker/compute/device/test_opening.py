"""Devices are handed out by who is free, whoever ended and however."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from planaria.job.parse import parse_job
from planaria.runtime.worker.compute.device import opening as device
from planaria.runtime.worker.compute.layers import LayerFailed

NAMES = ("gpu-a", "gpu-b", "gpu-c")
JOB = (
    '[model]\ntype = "gpt2"\n[train]\nsteps = 1\nglobal_batch = 2\nmicrobatch = 1\nsequence_length = 8\n'
    'numerics = "fast"\n[cluster]\nnodes = 2\ndevice = "cuda"\n'
)


def hold(folder: Path, first: int, place: Connection) -> None:
    """Claims a device, says which, and lives until it is killed."""
    device._held.clear()
    place.send(device.claim(NAMES, first, folder))
    signal.pause()


class Holder:
    """A process that has claimed a device."""

    def __init__(self, folder: Path, first: int) -> None:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        self._process = context.Process(target=hold, args=(folder, first, theirs))
        self._process.start()
        self.place = ours.recv()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


def test_who_takes_a_lost_ones_place_gets_its_device(tmp_path: Path) -> None:
    """Worker 3 would be on the first of three devices, which worker 0 has; worker 1's is the free one."""
    holders = [Holder(tmp_path, worker) for worker in range(3)]
    try:
        assert [holder.place for holder in holders] == [0, 1, 2]
        holders[1].kill()
        holders[1] = Holder(tmp_path, 3)
        assert holders[1].place == 1
    finally:
        for holder in holders:
            holder.kill()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Claims of this process, lifted when the test ends."""
    mine: list[object] = []
    monkeypatch.setattr(device, "_held", mine)
    return mine


def test_more_workers_than_devices_share_them_evenly(tmp_path: Path, held: list[object]) -> None:
    places = [device.claim(NAMES, 0, tmp_path) for _ in range(6)]
    assert sorted(places) == [0, 0, 1, 1, 2, 2]
    assert places[0] == 0
    assert len(held) == 6


def test_a_process_keeps_its_gpu(tmp_path: Path, held: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda place: object())
    job = parse_job(JOB, origin="test")
    device._claimed.cache_clear()
    monkeypatch.setattr(device, "CudaQueues", lambda place: None)
    monkeypatch.setattr(device, "shared_name", lambda: "")
    first = [device.open_device(job, 0).place.index for _ in range(2)]
    device._claimed.cache_clear()
    another = device.open_device(job, 2).place.index
    device._claimed.cache_clear()
    assert (first, another) == ([0, 0], 1)
    assert len(held) == 2


def test_gpus_are_taken_in_turn_where_no_lock_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda place: object())
    device._claimed.cache_clear()
    assert device._claimed(2, 1) == 1
    device._claimed.cache_clear()


@pytest.fixture
def switches() -> Iterator[None]:
    """Puts torch's switches back."""
    yield
    torch.use_deterministic_algorithms(False)
    for enable in (
        torch.backends.cuda.enable_flash_sdp,
        torch.backends.cuda.enable_mem_efficient_sdp,
        torch.backends.cuda.enable_cudnn_sdp,
    ):
        enable(True)


def test_exact_numerics_are_held_to_kernels_that_give_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, switches: None
) -> None:
    """What torch has none for raises: nothing warns, and goes on."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    device.make_reproducible()
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert torch.backends.cuda.math_sdp_enabled()
    assert not torch.backends.cuda.flash_sdp_enabled()
    assert not torch.backends.cuda.mem_efficient_sdp_enabled()


def test_workspaces_with_which_bits_differ_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    with pytest.raises(device.NoDevice, match="CUBLAS_WORKSPACE_CONFIG = ':0:0'"):
        device.make_reproducible()
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_layer_without_such_a_kernel_is_named_with_the_remedy() -> None:
    told = "histc_cuda does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms"
    text = str(LayerFailed("h.0", RuntimeError(told)))
    assert text == (
        "layer 'h.0': histc_cuda does not have a deterministic implementation. Set train.numerics = \"fast\"."
    )
