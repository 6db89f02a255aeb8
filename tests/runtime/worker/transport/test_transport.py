"""The data plane on real sockets: everything arrives once, strangers are refused, a worker that is cut off ends."""

from __future__ import annotations

import contextlib
import errno
import queue
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from planaria.plan.plan import WorkerId
from planaria.protocol.messages.to_worker import Stop
from planaria.runtime.thresholds import HELLO_LIMIT_BYTES, STATE_UNSENT_BYTES
from planaria.runtime.wire.certificates import make_certificates
from planaria.runtime.wire.control_frames import FrameError, control_frame
from planaria.runtime.wire.tls import Security
from planaria.runtime.worker.transport import outgoing
from planaria.runtime.worker.transport import transport as transport_module
from planaria.runtime.worker.transport.frames import data_frame
from planaria.runtime.worker.transport.mailbox import Interrupted, Key, Kind, Mailbox
from planaria.runtime.worker.transport.transport import Transport

TOKEN = "the token"
DEADLINE_S = 10.0


def key(item: int = 0, sender: int = 0) -> Key:
    return Key(Kind.ACTIVATION, sender, 1, 1, item, 0)


class Party:
    """A worker's mailbox and transport."""

    def __init__(self, number: int, token: str = TOKEN, security: Security | None = None) -> None:
        self.number = WorkerId(number)
        self.mailbox = Mailbox()
        self.cut_off: queue.SimpleQueue[WorkerId] = queue.SimpleQueue()
        self.transport = Transport(
            self.number, token, self.mailbox, cut_off=lambda peer, _: self.cut_off.put(peer), security=security
        )
        self.address = self.transport.start()

    def take(self, wanted: Key) -> tuple[torch.Tensor, ...]:
        """Wait for a message, with a deadline."""
        timer = threading.Timer(DEADLINE_S, lambda: self.mailbox.put_order(Stop(reason="deadline")))
        timer.start()
        try:
            return self.mailbox.take(wanted, lambda: False)
        finally:
            timer.cancel()

    def send(self, other: Party, item: int, *tensors: torch.Tensor) -> None:
        self.transport.send(other.number, key(item, self.number), tensors)


Introduce = Callable[..., list[Party]]


@pytest.fixture(scope="module")
def security(tmp_path_factory: pytest.TempPathFactory) -> Security:
    folder = tmp_path_factory.mktemp("tls") / "run"
    make_certificates(folder, 1)
    return Security(folder)


BOTH = pytest.mark.parametrize("parties", ["plain", "tls"], indirect=True)


@pytest.fixture
def parties(request: pytest.FixtureRequest, security: Security) -> Iterator[Introduce]:
    made: list[Party] = []

    def introduce(count: int) -> list[Party]:
        shown = security if getattr(request, "param", "plain") == "tls" else None
        made.extend(Party(number, security=shown) for number in range(count))
        addresses = {party.number: party.address for party in made}
        for party in made:
            party.transport.set_peers({n: a for n, a in addresses.items() if n != party.number})
        return made

    yield introduce
    for party in made:
        party.transport.close()


@BOTH
def test_messages_arrive_in_both_directions(parties: Introduce) -> None:
    one, two = parties(2)
    for item in range(50):
        one.send(two, item, torch.full((item,), float(item)), torch.tensor(item))
        two.send(one, item, torch.tensor(-item))
    for item in range(50):
        vector, number = two.take(key(item, 0))
        assert vector.tolist() == [item] * item
        assert int(number) == item
        assert int(one.take(key(item, 1))[0]) == -item


@BOTH
def test_large_messages_do_not_hold_up_the_sender_nor_change_places(parties: Introduce) -> None:
    """More than any socket buffer holds, while nobody reads yet."""
    one, two = parties(2)
    large = [torch.randn(1 << 20, generator=torch.Generator().manual_seed(n)) for n in range(6)]
    for item, tensor in enumerate(large):
        one.send(two, 2 * item, tensor)
        one.send(two, 2 * item + 1, torch.tensor(item))
    for item, tensor in enumerate(large):
        assert torch.equal(two.take(key(2 * item))[0], tensor)
        assert int(two.take(key(2 * item + 1))[0]) == item


@BOTH
def test_a_connection_goes_as_fast_as_it_is_paced(parties: Introduce) -> None:
    one, two = parties(2)
    one.send(two, 1, torch.ones(1))
    two.take(key(1))
    connection = one.transport._connection(two.number, two.address, transport_module._Way.STEPS)
    assert connection._socket is not None
    for pace, told in ((1e6, 1_000_000), (None, (1 << 64) - 1)):
        one.transport.pace([two.number], pace)
        rate = connection._socket.getsockopt(socket.SOL_SOCKET, outgoing._SO_MAX_PACING_RATE, 8)
        assert int.from_bytes(rate, sys.byteorder) == told
        one.send(two, 2, torch.ones(1 << 10))
        assert two.take(key(2))[0].shape == (1 << 10,)
    one.transport.set_peers({})
    one.transport.pace([two.number], None)  # it was to one that is gone


@BOTH
def test_a_peer_that_left_the_plan_and_came_back(parties: Introduce) -> None:
    one, two = parties(2)
    one.send(two, 1, torch.ones(1))
    two.take(key(1))
    one.transport.set_peers({})
    one.transport.set_peers({two.number: two.address})
    one.send(two, 2, torch.ones(1))
    assert two.take(key(2))[0].tolist() == [1]


def test_the_dead_take_nothing_with_them(parties: Introduce) -> None:
    one, two, three = parties(3)
    one.send(two, 1, torch.ones(1))
    two.take(key(1))
    two.transport.close()
    for item in range(20):
        one.send(two, item, torch.zeros(1 << 18))
        one.send(three, item, torch.tensor(item))
    for item in range(20):
        assert int(three.take(key(item))[0]) == item


def test_there_are_as_many_threads_with_many_peers_as_with_two(parties: Introduce) -> None:
    everyone = parties(9)
    one = everyone[0]

    def exchange(others: list[Party], item: int) -> None:
        for other in others:
            one.send(other, item, torch.ones(1 << 20))
            other.send(one, item, torch.ones(1 << 20))
            other.take(key(item, 0))
            one.take(key(item, other.number))

    def threads() -> set[threading.Thread]:
        """Those that stay, which the ones that connect, and this file's timers, do not."""
        return {thread for thread in threading.enumerate() if thread.name in ("greet", "receive", "send")}

    exchange(everyone[1:3], 1)
    for other in everyone[3:]:
        other.send(everyone[1], 2, torch.ones(1))  # so that each of them has its own sending thread
        everyone[1].take(key(2, other.number))
    with_two = threads()
    exchange(everyone[1:], 3)
    assert threads() <= with_two


def test_state_gives_way_to_what_steps_wait_for(parties: Introduce) -> None:
    """Whoever that is for, but for a share; and comes as soon as nothing is in its way."""
    one, two = parties(2)
    given = torch.arange(STATE_UNSENT_BYTES, dtype=torch.float32)
    state = Key(Kind.STATE, 0, 1, 1, 3, 0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one.transport.set_peers({two.number: two.address, WorkerId(5): address_of(listener)})
        one.transport.send(WorkerId(5), key(1), (torch.zeros(16 << 20),))
        peer, _ = listener.accept()
        with peer:
            one.transport.send(two.number, state, (given,))
            one.send(two, 2, torch.ones(1))
            two.take(key(2))
            assert two.mailbox.poll(state) is None
            reader = threading.Thread(target=is_closed, args=(peer,), daemon=True)
            reader.start()
            assert torch.equal(two.take(state)[0], given)
            one.transport.set_peers({two.number: two.address})
            reader.join(DEADLINE_S)


@BOTH
def test_state_comes_right_where_it_is_expected(parties: Introduce) -> None:
    one, two = parties(2)
    fits, other, late = (Key(Kind.STATE, 0, 1, 1, group, 0) for group in range(3))
    whole = torch.zeros(3000)
    two.mailbox.expect({fits: (whole[:1000], whole[1000:2000]), other: (whole[2000:],)})
    for state in (fits, other, late):
        one.transport.send(two.number, state, (torch.ones(1000), torch.full((1000,), 2.0)))
    first, second = two.take(fits)
    assert (first.data_ptr(), second.data_ptr()) == (whole.data_ptr(), whole[1000:].data_ptr())
    assert whole[:2000].tolist() == [1.0] * 1000 + [2.0] * 1000
    for state in (other, late):
        assert two.take(state)[1].tolist() == [2.0] * 1000
    assert not whole[2000:].any(), "what does not fit is left alone"


def raw(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=DEADLINE_S)


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()
    return f"{host}:{port}"


def is_closed(sock: socket.socket) -> bool:
    with contextlib.suppress(ConnectionError):
        while sock.recv(1 << 16):
            pass
    return True


def greeting(sender: str = "1", token: str = TOKEN) -> bytes:
    return control_frame(f"planaria-data-1 {sender} {token}".encode())


MESSAGE = b"".join(data_frame(key(7, 1), (torch.ones(3),)))
STRANGERS = {
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "wrong token": greeting(token="another") + MESSAGE,
    "no token": control_frame(b"planaria-data-1 1 ") + MESSAGE,
    "token that is not ASCII": greeting(token="gehe\u00efm") + MESSAGE,
    "another protocol": control_frame(b"planaria-data-9 1 the token") + MESSAGE,
    "a name that is no number": greeting(sender="one") + MESSAGE,
    "too long": (HELLO_LIMIT_BYTES + 1).to_bytes(4, "big") + b"x" * 100,
    "longest": b"\xff\xff\xff\xff",
    "a message first": MESSAGE,
}


@pytest.mark.parametrize("data", STRANGERS.values(), ids=STRANGERS)
def test_strangers_are_refused_and_disturb_nobody(data: bytes, parties: Introduce) -> None:
    one, two = parties(2)
    with raw(one.address) as stranger, raw(one.address), raw(one.address) as half:
        half.sendall(greeting()[:9])
        with contextlib.suppress(OSError):  # it may be refused before it has said all
            stranger.sendall(data)
            stranger.shutdown(socket.SHUT_WR)
        assert is_closed(stranger)
        two.send(one, 1, torch.ones(1))
        assert one.take(key(1, 1))[0].tolist() == [1]
    assert one.mailbox.poll(key(7, 1)) is None
    assert not one.mailbox.has_orders


@pytest.mark.parametrize(
    "data",
    [b"\xff" * 40, b"".join(data_frame(key(7, 3), (torch.ones(3),)))],
    ids=["nonsense", "in another's name"],
)
def test_a_peer_that_talks_nonsense_ends_the_worker_loudly(data: bytes, parties: Introduce) -> None:
    (one,) = parties(1)
    with raw(one.address) as peer:
        peer.sendall(greeting() + data)
        assert is_closed(peer)
    with pytest.raises(FrameError):
        one.mailbox.next_order(block=True)


def test_a_message_that_is_cut_off_never_arrives(parties: Introduce) -> None:
    (one,) = parties(1)
    with raw(one.address) as peer:
        peer.sendall(greeting() + MESSAGE[:-1])
        peer.shutdown(socket.SHUT_WR)
        assert is_closed(peer)
    assert one.mailbox.poll(key(7, 1)) is None
    assert not one.mailbox.has_orders


def flipped(frame: bytes, at: int) -> bytes:
    data = bytearray(frame)
    data[at] ^= 4
    return bytes(data)


STATE_KEY = Key(Kind.STATE, 1, 1, 1, 7, 0)
STATE = b"".join(data_frame(STATE_KEY, (torch.ones(3),)))


def test_a_damaged_message_is_told_of_once_it_is_wanted(parties: Introduce, capfd: pytest.CaptureFixture[str]) -> None:
    """And those after it arrive."""
    (one,) = parties(1)
    wanted: list[Key] = []
    one.mailbox.when_damaged = wanted.append
    with raw(one.address) as peer:
        later = b"".join(data_frame(key(8, 1), (torch.ones(3),)))
        peer.sendall(greeting() + flipped(STATE, -1) + later)
        assert one.take(key(8, 1))[0].tolist() == [1, 1, 1]
        assert not wanted, "what nobody waits for may have changed on its way"
        assert one.mailbox.poll(STATE_KEY) is None
        assert wanted == [STATE_KEY]
    assert "a message of worker 1 failed its checksum" in capfd.readouterr().err
    assert one.cut_off.empty()
    assert not one.mailbox.has_orders


def test_a_damaged_header_ends_the_way(parties: Introduce) -> None:
    (one,) = parties(1)
    one.transport.set_peers({WorkerId(1): "127.0.0.1:1"})
    with raw(one.address) as peer:
        peer.sendall(greeting() + flipped(MESSAGE, 30))
        assert is_closed(peer)
    assert one.cut_off.get(timeout=DEADLINE_S) == 1
    assert not one.mailbox.has_orders


def test_whoever_waits_for_a_damaged_message_is_interrupted_by_the_next_order(parties: Introduce) -> None:
    (one,) = parties(1)
    one.mailbox.when_damaged = lambda damaged: one.mailbox.put_order(Stop(reason="cut off"))
    with raw(one.address) as peer:
        peer.sendall(greeting() + flipped(STATE, -5))
        with pytest.raises(Interrupted):
            one.take(STATE_KEY)


def break_the_way(party: Party) -> None:
    """To worker 1, which is in the plan."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        party.transport.set_peers({WorkerId(1): address_of(listener)})
        party.transport.send(WorkerId(1), key(), (torch.zeros(1 << 22),))
        peer, _ = listener.accept()
        peer.close()


def test_a_way_that_is_lost_to_a_peer_in_the_plan_is_told_of(
    parties: Introduce, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_module, "CUT_OFF_S", 0.01)
    (one,) = parties(1)
    break_the_way(one)
    assert one.cut_off.get(timeout=DEADLINE_S) == 1
    assert not one.mailbox.has_orders, "whether the worker must end is not for it to say"


def test_a_peer_that_the_next_plan_leaves_out_is_not_missed(
    parties: Introduce, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    class Timer:
        daemon = False

        def __init__(self, interval_s: float, action: Callable[[], None]) -> None:
            timers.put(action)

        def start(self) -> None:
            pass

    monkeypatch.setattr(transport_module.threading, "Timer", Timer)
    (one,) = parties(1)
    break_the_way(one)
    check = timers.get(timeout=DEADLINE_S)
    one.transport.set_peers({})
    check()
    assert one.cut_off.empty()


@pytest.mark.parametrize("timeout_s", [DEADLINE_S, 0.0])
def test_a_host_that_cannot_be_reached_is_tried_again_for_a_while(
    timeout_s: float, parties: Introduce, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel says so for a moment after a cable is back."""
    monkeypatch.setattr(outgoing, "PEER_CONNECT_S", timeout_s)
    monkeypatch.setattr(transport_module, "CUT_OFF_S", 0.01)
    connect, attempts = socket.create_connection, []

    def unreachable_once(*arguments: Any, **options: Any) -> socket.socket:
        attempts.append(arguments)
        if len(attempts) == 1:
            raise OSError(errno.EHOSTUNREACH, "No route to host")
        return connect(*arguments, **options)

    one, two = parties(2)
    monkeypatch.setattr(outgoing.socket, "create_connection", unreachable_once)
    one.send(two, 1, torch.ones(1))
    if timeout_s:
        assert two.take(key(1))[0].tolist() == [1]
        assert one.cut_off.empty()
    else:
        assert one.cut_off.get(timeout=DEADLINE_S) == two.number
    assert len(attempts) == (2 if timeout_s else 1)
