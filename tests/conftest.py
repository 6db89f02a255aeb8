"""What tests of several folders run real processes with."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace

import pytest
from hypothesis import settings

from planaria.data.streams import reader_process
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


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected stays: no collection of garbage looks at it, now or later."""
    gc.disable()
    yield
    gc.collect()
    gc.freeze()
    gc.enable()
