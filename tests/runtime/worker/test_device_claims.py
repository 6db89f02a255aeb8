"""Devices are handed out by who is free, whoever ended and however."""

from __future__ import annotations

import multiprocessing
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from planaria.job.parse import parse_job
from planaria.runtime.worker.compute import device

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
    first = [device.open_device(job, 0).index for _ in range(2)]
    device._claimed.cache_clear()
    another = device.open_device(job, 2).index
    device._claimed.cache_clear()
    assert (first, another) == ([0, 0], 1)
    assert len(held) == 2


def test_gpus_are_taken_in_turn_where_no_lock_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda place: object())
    device._claimed.cache_clear()
    assert device._claimed(2, 1) == 1
    device._claimed.cache_clear()
