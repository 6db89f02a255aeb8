"""The worker's way to the coordinator: orders, what is sent again, and coordinators that come and go."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import msgspec
import pytest

from planaria.plan.ledger import Ledger
from planaria.plan.plan import WorkerId
from planaria.protocol.messages.from_worker import (
    Activity,
    Alive,
    Failed,
    FromWorker,
    Hello,
    Notice,
    OutOfMemory,
    Proof,
    Pulse,
    Ready,
    Returned,
    Vote,
    WorkerPhase,
    decode_from_worker,
)
from planaria.protocol.messages.message import PROTOCOL_VERSION, encode
from planaria.protocol.messages.to_worker import Challenge, Halt, Stop
from planaria.protocol.worker.machine import CoordinatorBack, CoordinatorGone
from planaria.runtime.wire.control_frames import control_frame, read_control
from planaria.runtime.worker.session import Control
from planaria.runtime.worker.transport.mailbox import Mailbox

DEADLINE_S = 10.0
HELLO = Hello(version=PROTOCOL_VERSION, token="token", worker=WorkerId(3), pid=1, data_address="nowhere:3")
RETURNED = Returned(
    generation=2,
    step=7,
    phase=WorkerPhase.RUNNING,
    is_settled=True,
    ledger=Ledger.empty(2),
    held=(0, 1),
    given=(0, 1),
    serial=0,
    commit=None,
    vote=None,
    message=None,
)
VOTE = Vote(generation=2, step=7, norms={}, losses={}, ledger=Ledger.empty(2))
ALIVE = Alive(pulse=Pulse(activity=Activity.IDLE, progress=1))
NOTICE = Notice(grace_s=30.0, cause="SIGTERM")
FAILED = Failed(where="layer 1", text="Traceback")
SHORT = OutOfMemory(holds=False, where="while a plan is taken over", held_bytes=0, wanted_bytes=0)


class Coordinators:
    """A port, and whoever serves it one after the other."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(DEADLINE_S)
        self.mailbox = Mailbox()
        self.control = Control(self.address, self.mailbox, timeout_s=0.3)
        self.control.start(HELLO)
        self.sock = self.accept()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.listener.getsockname()[1]}"

    def accept(self) -> socket.socket:
        """The next one takes over."""
        self.sock, _ = self.listener.accept()
        self.sock.settimeout(DEADLINE_S)
        return self.sock

    def heard(self) -> FromWorker:
        return decode_from_worker(read_control(self.sock))

    def say(self, order: Halt | Stop | Challenge) -> None:
        self.sock.sendall(control_frame(encode(order)))

    def die(self) -> None:
        self.sock.close()

    def close(self) -> None:
        self.control.close()
        self.sock.close()
        self.listener.close()


@pytest.fixture
def coordinators() -> Iterator[Coordinators]:
    with contextlib.closing(Coordinators()) as made:
        assert made.heard() == HELLO
        yield made


def order(coordinators: Coordinators) -> object:
    """The next; a failure instead of waiting for ever."""
    timer = threading.Timer(DEADLINE_S, coordinators.mailbox.put_error, [TimeoutError("no order came")])
    timer.start()
    try:
        return coordinators.mailbox.next_order(block=True)
    finally:
        timer.cancel()


def test_orders_arrive_in_order(coordinators: Coordinators) -> None:
    orders = [Halt(generation=n, step=n) for n in range(20)]
    coordinators.sock.sendall(b"".join(control_frame(encode(order)) for order in orders))
    assert [order(coordinators) for _ in orders] == orders


def test_a_challenge_is_answered_and_is_no_order(coordinators: Coordinators) -> None:
    halt = Halt(generation=1, step=1)
    coordinators.say(Challenge(nonce="never said before"))
    coordinators.say(halt)
    assert coordinators.heard() == Proof(nonce="never said before")
    assert order(coordinators) == halt


def test_the_next_coordinator_is_found_after_the_last_order_of_the_one_before(coordinators: Coordinators) -> None:
    halt = Halt(generation=1, step=1)
    coordinators.say(halt)
    coordinators.sock.sendall(control_frame(encode(halt))[:-1])
    coordinators.die()
    coordinators.accept()
    assert coordinators.heard() == HELLO
    assert [order(coordinators), order(coordinators)] == [halt, CoordinatorBack(2)]
    coordinators.say(halt)
    assert order(coordinators) == halt


def test_many_coordinators_one_after_the_other_are_served(coordinators: Coordinators) -> None:
    for number in range(2, 6):
        coordinators.die()
        coordinators.accept()
        assert coordinators.heard() == HELLO
        assert order(coordinators) == CoordinatorBack(number)


def test_a_connection_that_nobody_accepts_yet_is_as_good(coordinators: Coordinators) -> None:
    """The supervisor keeps the port open: the worker is there before the coordinator is."""
    coordinators.die()
    assert order(coordinators) == CoordinatorBack(2)
    coordinators.control.send_returned(RETURNED, 2)
    coordinators.accept()
    assert [coordinators.heard(), coordinators.heard()] == [HELLO, RETURNED]


def test_when_no_coordinator_comes_the_worker_is_told(coordinators: Coordinators) -> None:
    coordinators.listener.close()
    coordinators.die()
    assert order(coordinators) == CoordinatorGone()


def test_steps_are_not_told_to_a_coordinator_that_does_not_know_where_the_worker_is(
    coordinators: Coordinators,
) -> None:
    control = coordinators.control
    control.send(VOTE)
    control.send(ALIVE)
    control.send_returned(RETURNED, 1)
    control.send(VOTE)
    assert [coordinators.heard() for _ in range(3)] == [ALIVE, RETURNED, VOTE]
    coordinators.die()
    coordinators.accept()
    assert order(coordinators) == CoordinatorBack(2)
    control.send(Ready(generation=2))
    control.send_returned(RETURNED, 2)
    assert [coordinators.heard() for _ in range(2)] == [HELLO, RETURNED]


def test_where_a_worker_was_for_one_coordinator_is_not_told_to_the_next(coordinators: Coordinators) -> None:
    """It was found out before the last orders of the first were read, and sent when the next was there already."""
    control, later = coordinators.control, msgspec.structs.replace(RETURNED, step=8)
    coordinators.die()
    coordinators.accept()
    assert order(coordinators) == CoordinatorBack(2)
    control.send_returned(RETURNED, 1)
    control.send(VOTE)
    control.send_returned(later, 2)
    assert [coordinators.heard() for _ in range(2)] == [HELLO, later]


@pytest.mark.parametrize("news", [NOTICE, SHORT])
def test_what_nobody_else_knows_is_told_to_every_coordinator(
    news: Notice | OutOfMemory, coordinators: Coordinators
) -> None:
    coordinators.control.send(news)
    assert coordinators.heard() == news
    coordinators.die()
    assert order(coordinators) == CoordinatorBack(2)
    coordinators.accept()
    assert [coordinators.heard(), coordinators.heard()] == [HELLO, news]


@pytest.mark.parametrize("words", [FAILED, SHORT], ids=["failed", "out of memory"])
def test_a_failure_is_told_until_somebody_says_stop(coordinators: Coordinators, words: Failed | OutOfMemory) -> None:
    teller = threading.Thread(target=coordinators.control.send_last, args=[words])
    teller.start()
    assert coordinators.heard() == words
    coordinators.die()
    coordinators.accept()
    assert [coordinators.heard(), coordinators.heard()] == [HELLO, words]
    coordinators.say(Stop(reason="failed"))
    teller.join(DEADLINE_S)
    assert not teller.is_alive()


def test_who_was_told_to_stop_does_not_come_back(coordinators: Coordinators) -> None:
    coordinators.say(Stop(reason="fenced"))
    assert order(coordinators) == Stop(reason="fenced")
    coordinators.die()
    coordinators.listener.settimeout(0.1)
    with pytest.raises(TimeoutError):
        coordinators.accept()


@pytest.mark.parametrize("data", [b"\xff" * 8, control_frame(b"\xc1"), control_frame(b"\x91" * 9000)])
def test_a_coordinator_that_talks_nonsense_ends_the_worker_loudly(data: bytes, coordinators: Coordinators) -> None:
    coordinators.sock.sendall(data)
    with pytest.raises(ValueError, match=r"."):
        order(coordinators)


def test_where_nobody_is_at_the_address_the_start_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(OSError, match="refused"):
        Control(address, Mailbox()).start(HELLO)
