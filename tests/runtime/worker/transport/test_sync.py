"""Sums between owners: whose part is missing, and why."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from planaria.plan.plan import WorkerId
from planaria.runtime.worker.compute.shared_memory import SharedVector
from planaria.runtime.worker.transport.mailbox import Key, Kind, Mailbox
from planaria.runtime.worker.transport.sync import Sync

OWN, PEER = WorkerId(0), WorkerId(1)


class Counted:
    """An accumulator with something in it."""

    def __init__(self) -> None:
        self.shared = SharedVector(4, torch.float64)
        self.total = self.shared.tensor.fill_(1)
        self.is_empty = False


class Group:
    """One group of two owners, and what one of them has of it."""

    def __init__(self) -> None:
        self.mailbox = Mailbox()
        self.gradient = torch.zeros(4)
        accumulator = Counted()
        holdings = SimpleNamespace(
            accumulator=lambda group: accumulator, replicas={0: SimpleNamespace(gradient=self.gradient)}
        )
        transport = SimpleNamespace(send=lambda *message: None, is_on_this_host=lambda peer: True)
        pace = SimpleNamespace(add_up=lambda group, parts: None)
        plan = SimpleNamespace(
            workers=(OWN, PEER), owners_of=[(OWN, PEER)], groups_of={OWN: (0,), PEER: (0,)}, sync_epochs=[5]
        )
        parts: tuple[Any, ...] = (holdings, transport, self.mailbox, pace)
        self.sync = Sync(OWN, *parts)
        self.sync.begin_step(cast(Any, plan), 3)
        self.sync.start(0, 5, 0)

    def arrives(self, kind: str, *payload: torch.Tensor) -> None:
        self.mailbox.put(Key(kind, PEER, 3, 5, 0, 0), payload)


def dead_owner() -> torch.Tensor:
    """Where the vector lies of a process that is gone."""
    address = SharedVector(4, torch.float64).address()
    pid = os.fork()
    if not pid:
        signal.pause()
        os._exit(0)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    address[0] = pid
    return address


@pytest.fixture
def group() -> Group:
    return Group()


def test_an_owner_that_counted_nothing_adds_nothing(group: Group) -> None:
    group.arrives(Kind.SUM)
    assert group.sync.progress()
    assert group.sync.is_whole()
    assert group.gradient.tolist() == [1] * 4


def test_a_part_in_shared_memory_is_added(group: Group) -> None:
    counted = Counted()
    group.arrives(Kind.SHARED_SUM, counted.shared.address())
    assert group.sync.progress()
    assert group.sync.is_whole()
    assert group.gradient.tolist() == [2] * 4


def test_an_owner_that_died_before_its_part_was_read_has_not_counted_nothing(group: Group) -> None:
    """The sum is not whole, and never will be: a plan without the owner makes it anew."""
    group.arrives(Kind.SHARED_SUM, dead_owner())
    assert not group.sync.progress()
    assert not group.sync.is_whole()
    assert group.sync.awaited() == PEER
