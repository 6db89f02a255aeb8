"""The stopwatch: waiting for a core is the host's doing, being stopped is the node's."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from planaria.runtime.worker.compute.device_clock import OwnPace
from planaria.runtime.worker.compute.stopwatch import Stopwatch, stopwatch

CPU = torch.device("cpu")
MANY = 10_000


def test_a_core_for_each_worker_is_timed_by_the_clock_on_the_wall() -> None:
    assert stopwatch(CPU, 1) is time.monotonic


@pytest.fixture
def oversubscribed() -> Stopwatch:
    return stopwatch(CPU, MANY)


def _work(watch: Stopwatch, processor_s: float) -> tuple[float, float]:
    """Works for some processor time; returns what the stopwatch and the wall's clock say."""
    began, began_wall, end = watch(), time.monotonic(), time.thread_time() + processor_s
    while time.thread_time() < end:
        pass
    return watch() - began, time.monotonic() - began_wall


def test_waiting_for_a_core_does_not_count(oversubscribed: Stopwatch) -> None:
    """Where others want the same core, and no more than the work counts."""
    core = min(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    rivals = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    try:
        measured, wall = _work(oversubscribed, 0.15)
        while wall < 0.3:  # until the rivals have begun
            measured, wall = _work(oversubscribed, 0.15)
    finally:
        for rival in rivals:
            rival.kill()
            rival.wait()
        os.sched_setaffinity(0, before)
    assert measured < 0.15 + 0.5 * (wall - 0.15)
    assert measured >= 0.149


def test_time_in_which_a_process_is_stopped_counts(oversubscribed: Stopwatch) -> None:
    script = (
        "import os, signal, sys, time\n"
        "os.kill(int(sys.argv[1]), signal.SIGSTOP); time.sleep(0.3); os.kill(int(sys.argv[1]), signal.SIGCONT)"
    )
    began, began_processor = oversubscribed(), time.thread_time()
    stopper = subprocess.Popen([sys.executable, "-c", script, str(os.getpid())])
    stopper.wait()
    assert oversubscribed() - began >= 0.3
    assert time.thread_time() - began_processor < 0.3, "processor time would not have told"


def test_without_counts_of_waiting_it_is_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    assert _work(stopwatch(CPU, MANY), 0.02)[0] == pytest.approx(0.02, abs=0.01)


def test_a_device_that_is_slow_on_order() -> None:
    pace = OwnPace()
    pace.slowness = 3.0
    began = time.monotonic()
    pace.slow_down(0.01)
    assert time.monotonic() - began >= 0.02
    pace.slowness = 1.0
    pace.slow_down(1e9)


def test_a_slow_device_waits_for_cores_beside_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each nap ends with as long a wait for a core, which the stopwatch leaves out."""
    wall_s = waited_s = 0.0

    def nap(seconds: float) -> None:
        nonlocal wall_s, waited_s
        wall_s, waited_s = wall_s + 2 * seconds, waited_s + seconds

    clock = SimpleNamespace(monotonic=lambda: wall_s, sleep=nap, thread_time=time.thread_time)
    monkeypatch.setattr("planaria.runtime.worker.compute.device_clock.time", clock)
    pace = OwnPace(lambda: wall_s - waited_s)
    pace.slowness = 3.0
    pace.slow_down(0.01)
    assert pace.stopwatch() == pytest.approx(0.02)


def test_a_slow_device_works_for_longer_where_only_work_is_timed() -> None:
    pace = OwnPace(time.thread_time)
    pace.slowness = 3.0
    began = pace.stopwatch()
    pace.slow_down(0.005)
    assert pace.stopwatch() - began >= 0.01
