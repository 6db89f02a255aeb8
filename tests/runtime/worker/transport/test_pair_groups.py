"""Messages by process groups of gloo, between real sockets and processes: all arrive, and who dies or stops ends no
more than its own groups."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from unittest.mock import MagicMock

import pytest
import torch
from torch import distributed as dist

from planaria.job.sections.cluster import TransportKind
from planaria.plan.plan import WorkerId
from planaria.protocol.messages.to_worker import Stop
from planaria.runtime.worker.compute.device.device import HostDevice
from planaria.runtime.worker.transport.frames import DTYPES
from planaria.runtime.worker.transport.lending import Lending
from planaria.runtime.worker.transport.mailbox import Key, Kind, Mailbox
from planaria.runtime.worker.transport.pair_groups import Gloo, Nccl
from planaria.runtime.worker.transport.transport import Transport

TOKEN = "the token"
DEADLINE_S = 20.0
LARGE = 1 << 25
"""Bytes that no buffers of a kernel take."""


class Party:
    """A worker's mailbox and transport."""

    def __init__(self, number: int) -> None:
        self.number = WorkerId(number)
        self.mailbox = Mailbox()
        self.cut_off: list[WorkerId] = []
        self.transport = Transport(
            self.number, TOKEN, self.mailbox, cut_off=lambda peer, _: self.cut_off.append(peer), kind=TransportKind.GLOO
        )
        self.address = self.transport.start()

    def meet(self, addresses: dict[int, str]) -> None:
        """Has peers at these addresses, and a device."""
        self.transport.set_peers({WorkerId(peer): address for peer, address in addresses.items()})
        if self.transport._groups is None:
            self.transport.serve(Lending(HostDevice()))

    def send(self, peer: int, item: int, *tensors: torch.Tensor) -> None:
        self.transport.send(WorkerId(peer), key(item, self.number), tensors)

    def take(self, item: int, sender: int, kind: str = Kind.ACTIVATION) -> tuple[torch.Tensor, ...]:
        timer = threading.Timer(DEADLINE_S, lambda: self.mailbox.put_order(Stop(reason="deadline")))
        timer.start()
        try:
            found = self.mailbox.take(key(item, sender)._replace(kind=kind), lambda: False)
            assert isinstance(found, tuple)
            return found
        finally:
            timer.cancel()


def key(item: int, sender: int) -> Key:
    return Key(Kind.ACTIVATION, sender, 1, 1, item, 0)


@pytest.fixture
def parties() -> Iterator[Callable[[int], list[Party]]]:
    made: list[Party] = []

    def introduce(count: int) -> list[Party]:
        made.extend(Party(number) for number in range(len(made), len(made) + count))
        for party in made:
            party.meet({other.number: other.address for other in made if other is not party})
        return made

    yield introduce
    for party in made:
        party.transport.close()


CHILD = """
import sys
from tests.runtime.worker.transport.test_pair_groups import Party
import torch
child = Party(1)
print(child.address, flush=True)
child.meet({0: sys.stdin.readline().strip()})
for line in sys.stdin:
    if line.startswith("send"):
        child.send(0, 7, torch.zeros(int(line.split()[1]), dtype=torch.uint8))
    else:
        child.take(int(line.split()[1]), 0)
    print("done", flush=True)
"""


class Child:
    """Worker 1, a process of its own."""

    def __init__(self, peer: Party) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        peer.meet({1: self.address})
        self._write(peer.address)

    def say(self, line: str) -> None:
        """Says something, and waits until it is done."""
        self._write(line)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "done\n"

    def _write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def stop(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def pair(parties: Callable[[int], list[Party]]) -> Iterator[tuple[Party, Child]]:
    (own,) = parties(1)
    child = Child(own)
    yield own, child
    child.kill()
    assert child.process.stdin is not None
    assert child.process.stdout is not None
    child.process.stdin.close()
    child.process.stdout.close()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the deadline passed"
        time.sleep(0.005)


def at_work() -> set[str]:
    """Names of the threads that are at work on groups."""
    return {thread.name for thread in threading.enumerate() if thread.name.endswith("by a group")}


def test_messages_of_every_kind_arrive_in_both_directions(
    parties: Callable[[int], list[Party]], monkeypatch: pytest.MonkeyPatch
) -> None:
    carried = list[int]()
    receive = Gloo.receive

    def counted(self: Gloo, group: object, data: torch.Tensor) -> None:
        carried.append(data.numel())
        receive(self, group, data)

    monkeypatch.setattr(Gloo, "receive", counted)
    one, two = parties(2)
    kinds = [(torch.randn(3, 5) * 10).to(dtype) for dtype in DTYPES.values()]
    for item in range(20):
        one.send(1, item, *kinds, torch.full((), item), torch.empty(0, 4), kinds[0].t())
        two.send(0, item, torch.full((item + 1,), item))
        one.send(1, 100 + item)
    for item in range(20):
        *got, number, nothing, turned = two.take(item, 0)
        assert all(torch.equal(mine, yours) for mine, yours in zip(kinds, got, strict=True))
        assert (int(number), nothing.shape) == (item, (0, 4))
        assert torch.equal(turned, kinds[0].t())
        assert two.take(100 + item, 0) == ()
        assert one.take(item, 1)[0].tolist() == [item] * (item + 1)
    assert len(carried) == 20 * (len(kinds) + 2 + 1)


def test_what_gives_way_over_tcp_keeps_its_place_in_a_group(parties: Callable[[int], list[Party]]) -> None:
    """State has a connection of its own there, and its header could come later than what was sent after it."""
    one, two = parties(2)
    for item in range(50):
        state = Key(Kind.STATE, 0, 1, 1, item, 0)
        one.transport.send(WorkerId(1), state, (torch.full((1000 + item,), item),))
        one.send(1, item, torch.full((3,), item))
    for item in range(50):
        assert two.take(item, 0)[0].tolist() == [item] * 3
        (state_came,) = two.take(item, 0, Kind.STATE)
        assert state_came.tolist() == [item] * (1000 + item)


def test_a_peer_that_dies_is_told_and_the_others_go_on(
    parties: Callable[[int], list[Party]], pair: tuple[Party, Child]
) -> None:
    own, child = pair
    own.send(1, 0, torch.zeros(10))
    child.say("receive 0")
    child.stop()
    own.send(1, 1, torch.zeros(LARGE, dtype=torch.uint8))
    child.kill()
    wait_until(lambda: own.cut_off == [1])
    another = Party(2)
    own.meet({2: another.address})
    another.meet({0: own.address})
    own.send(2, 0, torch.ones(5))
    assert another.take(0, 0)[0].tolist() == [1.0] * 5
    another.transport.close()


def test_who_leaves_the_plan_holds_nobody_up(pair: tuple[Party, Child]) -> None:
    """It is stopped, in the middle of a message that it was to receive, and of one that it sends."""
    own, child = pair
    child.say("send 1000")
    assert own.take(7, 1)[0].numel() == 1000
    own.send(1, 0, torch.zeros(10))
    child.say("receive 0")
    child.stop()
    own.send(1, 1, torch.zeros(LARGE, dtype=torch.uint8))
    assert at_work() == {"send by a group", "receive by a group"}
    own.meet({})
    wait_until(lambda: at_work() == {"receive by a group"})  # which holds nobody up, and may be of a later plan
    child.kill()
    wait_until(lambda: not at_work())
    assert own.cut_off == []


def test_a_peer_that_dies_before_the_group_is_made(pair: tuple[Party, Child]) -> None:
    own, child = pair
    child.stop()
    own.send(1, 0, torch.zeros(10))
    child.kill()
    assert at_work() == {"send by a group"}
    own.meet({})
    wait_until(lambda: not at_work())


def test_a_plan_that_its_receiver_has_and_not_its_sender_ends_no_group(
    parties: Callable[[int], list[Party]],
) -> None:
    """The sender is left out of a plan, which it does not hear of, and is back in the next one."""
    one, two = parties(2)
    one.send(1, 0, torch.ones(3))
    assert two.take(0, 0)[0].tolist() == [1.0] * 3
    two.meet({})
    two.meet({0: one.address})
    one.send(1, 1, torch.zeros(3))
    assert two.take(1, 0)[0].tolist() == [0.0] * 3
    assert one.cut_off == []


def test_what_groups_bring_waits_for_a_device_and_holds_up_nothing_else(parties: Callable[[int], list[Party]]) -> None:
    one, two = parties(2)
    late = Party(2)
    for party in (one, two):
        party.meet({**{other.number: other.address for other in (one, two) if other is not party}, 2: late.address})
    one.send(2, 0, torch.ones(3))
    two.transport.send(WorkerId(2), key(5, 1), ())
    assert late.take(5, 1) == ()
    late.meet({0: one.address, 1: two.address})
    assert late.take(0, 0)[0].tolist() == [1.0] * 3
    late.transport.close()


def test_who_comes_back_gets_another_group(parties: Callable[[int], list[Party]]) -> None:
    one, two = parties(2)
    one.send(1, 0, torch.ones(3))
    assert two.take(0, 0)[0].tolist() == [1.0] * 3
    one.meet({})
    wait_until(lambda: "send by a group" not in at_work())
    one.meet({1: two.address})
    one.send(1, 1, torch.zeros(3))
    assert two.take(1, 0)[0].tolist() == [0.0] * 3


def test_nccl_is_waited_for_by_the_host_on_a_stream_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch names it; it has not run on a GPU."""
    calls = MagicMock()
    for name in ("Stream", "stream", "set_device"):
        monkeypatch.setattr(f"torch.cuda.{name}", getattr(calls, name))
    monkeypatch.setattr(dist, "ProcessGroupNCCL", calls.ProcessGroupNCCL, raising=False)
    monkeypatch.setattr(torch, "empty", lambda size, dtype, device: torch.zeros(size, dtype=dtype))
    nccl = Nccl(torch.device("cuda", 1))
    group, stream = nccl.group(calls.store, 0), calls.Stream.return_value
    nccl.send(group, torch.ones(3))
    assert stream.synchronize.call_count == 1
    nccl.receive(group, nccl.empty(5))
    assert stream.synchronize.call_count == 2
    nccl.abort(group)
    group.abort.assert_called_once_with()
    assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
