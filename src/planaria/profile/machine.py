"""Measures what a step costs beside its layers: messages, votes, sums and the optimizer."""

from __future__ import annotations

import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from planaria.coordinator.journal import Journal
from planaria.job.settings import Numerics, TrainSection
from planaria.model.model import GroupSpec, ParameterSpec
from planaria.plan.profile import LinkCost, StepCosts
from planaria.protocol.events import JournalCommit
from planaria.worker.accumulator import total_gradient
from planaria.worker.replica import Replica, apply_adamw

_LENGTH = 1 << 20
"""Parameters that sums and the optimizer are measured with: more than the caches of a core hold."""

_REPEATS = 5


def measure_link() -> LinkCost:
    """Loopback TCP between two threads: latency of 64 bytes, bandwidth of 4 MB."""
    listener = socket.create_server(("127.0.0.1", 0))
    near = socket.create_connection(listener.getsockname())
    far, _ = listener.accept()
    listener.close()
    large = 4 << 20
    sizes = [64] * 20 + [large] * 4

    def echo() -> None:
        for size in sizes:
            _receive(far, size)
            far.sendall(b"x")

    thread = threading.Thread(target=echo, daemon=True)
    thread.start()
    times: dict[int, list[float]] = {}
    for size in sizes:
        began = time.perf_counter()
        near.sendall(bytes(size))
        _receive(near, 1)
        times.setdefault(size, []).append(time.perf_counter() - began)
    thread.join()
    near.close()
    far.close()
    latency = statistics.median(times[64]) / 2
    bandwidth = large / max(statistics.median(times[large]) - latency, 1e-6)
    return LinkCost(latency_s=latency, bandwidth_bytes_per_s=bandwidth)


def _receive(sock: socket.socket, size: int) -> None:
    view = memoryview(bytearray(size))
    while view:
        view = view[sock.recv_into(view) :]


def measure_step(train: TrainSection, device: torch.device, link: LinkCost) -> StepCosts:
    """With the worker's own sum and optimizer, and the coordinator's journal."""
    spec = ParameterSpec(name="weight", shape=(_LENGTH,), decays=True, uses=((0, "weight"),))
    replica = Replica(GroupSpec(layers=(0,), parameters=(spec,)), device)
    dtype = torch.float64 if train.numerics is Numerics.EXACT else torch.float32
    parts = [torch.zeros(_LENGTH, dtype=dtype, device=device) for _ in range(2)]
    size_bytes = replica.parameters.nbytes
    apply_s = _median_s(lambda: apply_adamw([replica], train, 1, 1.0), device)
    sum_s = _median_s(lambda: total_gradient(parts, replica.gradient, with_norm=True), device)
    return StepCosts(
        # A vote goes in, the journal is written, the commit comes out.
        vote_s=2 * link.time_s(256) + _journal_s(),
        apply_s_per_byte=apply_s / size_bytes,
        sum_s_per_byte=sum_s / size_bytes,
    )


def _journal_s() -> float:
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "journal.sqlite")
        journal.start()
        commit = JournalCommit(1, 1, 1.0, 1.0, (0,) * 16)
        seconds = _median_s(lambda: journal.write(commit), torch.device("cpu"))
        journal.close()
    return seconds


def _median_s(work: Callable[[], object], device: torch.device) -> float:
    times = []
    for _ in range(_REPEATS + 1):
        began = _now(device)
        work()
        times.append(_now(device) - began)
    return statistics.median(times[1:])


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
