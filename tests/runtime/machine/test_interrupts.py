"""A signal that asks a process to end is heeded at whatever moment it comes."""

from __future__ import annotations

import os
import signal
import threading
import weakref
from collections.abc import Iterator
from signal import Signals

import pytest

from planaria.runtime.machine.interrupts import Interrupted, interrupts, raise_interrupted


class Anything:
    """Something that can be referred to weakly."""


def drop_it_in_a_callback(number: Signals) -> None:
    """A signal comes while Python runs a callback, as in each import, and drops what is raised there."""
    thing = Anything()
    reference = weakref.ref(thing, lambda _: os.kill(os.getpid(), number))
    del thing
    assert reference() is None


@pytest.fixture(autouse=True)
def same_handlers_afterwards() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (Signals.SIGINT, Signals.SIGTERM)}
    yield
    assert before == {number: signal.getsignal(number) for number in before}


@pytest.mark.parametrize("number", [Signals.SIGINT, Signals.SIGTERM])
def test_a_signal_whose_exception_python_drops_comes_once_more(number: Signals) -> None:
    with pytest.raises(Interrupted) as caught, interrupts(raise_interrupted):
        drop_it_in_a_callback(number)
        threading.Event().wait(10.0)
    assert caught.value.signal is number


def test_one_that_comes_once_more_does_not_insist() -> None:
    heeded: list[bool] = []

    def heed(number: Signals, insists: bool) -> None:
        heeded.append(insists)
        raise Interrupted(number)

    with pytest.raises(Interrupted), interrupts(heed):
        drop_it_in_a_callback(Signals.SIGINT)
        threading.Event().wait(10.0)
    assert heeded == [False, False]
