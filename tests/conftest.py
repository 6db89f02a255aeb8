"""What tests of several folders run real processes with."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace

import pytest
from hypothesis import settings

os.environ["OMP_NUM_THREADS"] = "1"  # read as torch is imported: pytest's workers have all cores among them

from planaria.data.streams import reader_process
from planaria.policy.adaptive import chosen_devices
from planaria.policy.interface import Candidate, ReplanRequest
from planaria.runtime.nodes.local_nodes import LocalNodes
from tests.e2e.incubator import Incubator

settings.register_profile("without deadlines", deadline=None)  # other programs use the cores as well
settings.load_profile("without deadlines")


@pytest.fixture(scope="session")
def hangs_up() -> Iterator[None]:
    """What these tests start heeds SIGHUP, also where they themselves run under nohup."""
    before = signal.signal(signal.SIGHUP, lambda number, frame: None)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="session")
def incubator(hangs_up: None) -> Iterator[Incubator]:
    """One for all workers of pytest: what it imports is imported once."""
    with closing(Incubator(shared=os.environ.get("PYTEST_XDIST_TESTRUNUID", ""))) as made:
        yield made


@pytest.fixture
def forked_readers(incubator: Incubator, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader of a stream that this process wants is forked from the incubator, and so there at once."""
    forked = SimpleNamespace(Popen=incubator.start_reader, PIPE=subprocess.PIPE)
    monkeypatch.setattr(reader_process, "subprocess", forked)


@pytest.fixture
def forked_forkservers(forked_readers: None, incubator: Incubator, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forkserver that this process wants is forked from the incubator, and so there at once; so are readers."""
    monkeypatch.setattr(LocalNodes, "start", lambda nodes: incubator.start_forkserver(nodes))


@pytest.fixture
def changing_devices(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Where the number of devices of a stage is left open, it changes wherever it can, under every policy: to one that
    is drawn. Returns the numbers before and after each change, as they come."""
    draw, choosing, changes = random.Random(7), chosen_devices.choosing, list[tuple[int, int]]()
    now = [0]
    reconfigure = chosen_devices.ChosenDevicesPolicy.reconfigure

    def noted(policy: chosen_devices.ChosenDevicesPolicy, request: ReplanRequest) -> Candidate:
        now.append(request.plan.devices_per_stage)
        found = reconfigure(policy, request)
        if found.plan.devices_per_stage != request.plan.devices_per_stage:
            changes.append((request.plan.devices_per_stage, found.plan.devices_per_stage))
        return found

    monkeypatch.setattr(chosen_devices.ChosenDevicesPolicy, "reconfigure", noted)
    monkeypatch.setattr(chosen_devices, "_rank", lambda one: (one.devices == now[-1], draw.random()))
    monkeypatch.setattr(chosen_devices, "_is_clearly_better", lambda other, own: True)
    monkeypatch.setattr(
        chosen_devices,
        "choosing",
        lambda planner, usual, anew, weighs: choosing(planner, usual, anew, weighs=True),
    )
    return changes


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected stays: no collection of garbage looks at it, now or later."""
    gc.disable()
    yield
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """What is left goes with the process: pytest looks for garbage in it five times, for seconds each, else."""
    gc.freeze()
