"""A Ctrl-C while simulating processes are started: they do not hear it, and who starts them does."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from planaria.runtime.machine.interrupts import deaf


@pytest.fixture(autouse=True)
def python_hears_interrupts() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_is_heard_when_all_are_started() -> None:
    are_started = False
    with pytest.raises(KeyboardInterrupt), deaf():
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        are_started = True
    assert are_started


def test_processes_do_not_hear_one() -> None:
    with deaf():
        process = subprocess.Popen([sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 0
