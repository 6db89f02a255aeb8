"""Sums between owners: each adds up its slice and hands it back; whose part is missing, and why."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from planaria.plan.plan import WorkerId
from planaria.runtime.worker.compute.accumulator import add_up, grid_step, squared_norm
from planaria.runtime.worker.compute.device.device import HostDevice
from planaria.runtime.worker.compute.holdings import Holdings
from planaria.runtime.worker.compute.shared_memory import SharedVector
from planaria.runtime.worker.transport.mailbox import Key, Kind, Mailbox
from planaria.runtime.worker.transport.sync import Sync

STEP, EPOCH, EXPONENT = 3, 5, -2
SIZE = 640


class Counted:
    """An accumulator, with something in it unless it is empty."""

    def __init__(self, seed: int, dtype: torch.dtype, *, is_empty: bool) -> None:
        generator = torch.Generator().manual_seed(seed)
        values = torch.randint(-(1 << 33), 1 << 33, (SIZE,), generator=generator)
        self.shared = SharedVector(SIZE, dtype)
        self.total = self.shared.tensor.copy_(values.double() * grid_step(EXPONENT))
        self.is_empty = is_empty


class Owner:
    """One owner of a group, its mailbox, and what it counted."""

    def __init__(self, group: Group, worker: WorkerId, dtype: torch.dtype, *, is_empty: bool) -> None:
        self.mailbox = Mailbox()
        self.counted = Counted(worker, dtype, is_empty=is_empty)
        shared = SharedVector(SIZE, torch.float32)
        self.gradient = shared.tensor
        self.replica = SimpleNamespace(gradient=self.gradient, shared_gradient=shared, added_up=None)
        self.holdings = SimpleNamespace(
            accumulator=lambda group: self.counted,
            replicas={0: self.replica},
            is_on_host=True,
            device=HostDevice(),
            sum_dtype=dtype,
            exponents=(EXPONENT,),
            squared_norm=lambda group: squared_norm(self.gradient),
            note_added_up=lambda *part: Holdings.note_added_up(cast(Any, self.holdings), *part),
            note_taken=lambda *part: Holdings.note_taken(cast(Any, self.holdings), *part),
            _compares=True,
        )
        at = lambda worker: group.hosts[worker]  # noqa: E731
        quiet = lambda peers, bytes_per_s: None  # noqa: E731
        transport = SimpleNamespace(send=group.send, host_of=at, memory_of=at, pace=quiet)
        pace = SimpleNamespace(add_up=lambda piece: None)
        parts: tuple[Any, ...] = (self.holdings, transport, self.mailbox, pace)
        self.sync = Sync(worker, *parts)
        self.sync.begin_step(cast(Any, group.plan), STEP)

    def digest(self) -> int:
        """Returns what it would tell of the sum."""
        return Holdings._digest_of_sum(cast(Any, self.holdings), cast(Any, self.replica))


class Group:
    """One group, its owners by host, and what is sent between these."""

    def __init__(
        self,
        hosts: Sequence[int],
        dtype: torch.dtype = torch.float64,
        empty: Sequence[int] = (),
        epoch: int = EPOCH,
        keepers: Sequence[int] | None = None,
    ) -> None:
        self.hosts = hosts
        workers = tuple(WorkerId(n) for n in range(len(hosts)))
        self.plan = SimpleNamespace(
            workers=workers,
            owners_of=[workers],
            keepers_of=[workers if keepers is None else tuple(map(WorkerId, keepers))],
            groups_of=dict.fromkeys(workers, (0,)),
            sync_epochs=[epoch],
        )
        self.sent: dict[tuple[int, int], int] = {}
        self.owners = [Owner(self, worker, dtype, is_empty=worker in empty) for worker in workers]

    def send(self, peer: WorkerId, key: Key, tensors: tuple[torch.Tensor, ...]) -> None:
        between = self.hosts[key.sender], self.hosts[peer]
        if between[0] != between[1]:
            self.sent[between] = self.sent.get(between, 0) + sum(tensor.nbytes for tensor in tensors)
        self.owners[peer].mailbox.put(key, tensors)

    def run(self) -> None:
        while sum(owner.sync.progress() for owner in self.owners):
            pass

    def sum_up(self) -> None:
        for owner in self.owners:
            owner.sync.start(0, EPOCH, 0)
        self.run()

    def expected(self) -> torch.Tensor:
        parts = [owner.counted.total for owner in self.owners if not owner.counted.is_empty]
        out = torch.empty(SIZE)
        add_up(parts, out)
        return out


HOSTS = [(0,), (0, 0), (0, 1), (0, 0, 0), (0, 0, 1), (0, 1, 1, 2), (0, 1, 2, 3, 4), (0, 1, 0, 1, 0, 2, 2, 2)]


@pytest.mark.parametrize("hosts", HOSTS)
def test_every_owner_has_the_whole_sum_bit_for_bit(hosts: Sequence[int]) -> None:
    group = Group(hosts)
    group.sum_up()
    expected = group.expected()
    for owner in group.owners:
        assert owner.sync.is_whole()
        assert torch.equal(owner.gradient, expected)
    norms = [owner.sync.norms for owner in group.owners]
    assert [norm for norm in norms if norm] == [{0: squared_norm(expected)}], "one owner tells the norm"


@pytest.mark.parametrize("hosts", [hosts for hosts in HOSTS if len(hosts) > 1])
def test_a_bit_that_flips_before_others_read_a_sum_makes_owners_differ(hosts: Sequence[int]) -> None:
    group = Group(hosts)
    for owner in group.owners:
        owner.sync.start(0, EPOCH, 0)
    first = group.owners[0]
    while first.replica.added_up is None:
        assert sum(owner.sync.progress() for owner in group.owners)
    begin, end, _ = first.replica.added_up
    first.gradient[begin:end].view(torch.int32)[3] ^= 1 << 21
    group.run()
    assert len({owner.digest() for owner in group.owners}) > 1


def test_sums_made_again_and_by_others_are_the_same_for_all_owners() -> None:
    """Who added up a part before may get it from another owner afterwards."""
    group = Group((0, 0, 1))
    group.sum_up()
    assert len({owner.digest() for owner in group.owners}) == 1
    for owner in group.owners:
        begin, end, _ = owner.replica.added_up
        owner.holdings.note_taken(0, end, end + 1)
        assert owner.replica.added_up is not None, "the part beside it came"
        owner.gradient.neg_()
        owner.holdings.note_taken(0, begin, begin + 1)
    assert len({owner.digest() for owner in group.owners}) == 1


@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_owners_that_counted_nothing_add_nothing(hosts: Sequence[int], dtype: torch.dtype) -> None:
    group = Group(hosts, dtype, empty=range(0, len(hosts), 2))
    group.sum_up()
    for owner in group.owners:
        assert owner.sync.is_whole()
        assert torch.allclose(owner.gradient, group.expected())
        assert torch.equal(owner.gradient, group.owners[0].gradient)


@pytest.mark.parametrize(
    ("hosts", "keepers"),
    [
        ((0, 0, 1, 1), (0, 2)),
        ((0, 0, 0, 0), (1,)),
        ((0, 1, 2, 3), (0, 2)),
        ((0, 1, 1, 2, 2), (0,)),
        ((0, 0, 0, 1, 1, 1, 2), (0, 2, 4)),
    ],
)
@pytest.mark.parametrize("empty", [(), (0, 1)])
def test_who_does_not_keep_a_group_gives_what_it_counted_and_gets_nothing(
    hosts: Sequence[int], keepers: Sequence[int], empty: Sequence[int]
) -> None:
    group = Group(hosts, empty=empty, keepers=keepers)
    group.sum_up()
    expected = group.expected()
    for worker, owner in enumerate(group.owners):
        assert owner.sync.is_whole()
        assert owner.sync.awaited() is None
        assert torch.equal(owner.gradient, expected if worker in keepers else torch.zeros(SIZE))
        assert worker in keepers or not owner.sync.norms
    norms = [owner.sync.norms for owner in group.owners]
    assert [norm for norm in norms if norm] == [{0: squared_norm(expected)}], "one keeper tells the norm"


@pytest.mark.parametrize("hosts", [(0, 1), (0, 1, 2, 3), (0, 0, 1, 1)])
def test_between_hosts_a_slice_goes_there_and_its_total_back(hosts: Sequence[int]) -> None:
    group = Group(hosts, torch.float32)
    group.sum_up()
    num_hosts = len(set(hosts))
    for host in range(num_hosts):
        out = sum(size for (source, _), size in group.sent.items() if source == host)
        assert out == 2 * (num_hosts - 1) * SIZE * 4 // num_hosts


def test_an_exact_sum_takes_little_more_between_hosts_than_a_fast_one() -> None:
    group = Group((0, 1))
    for owner in group.owners:
        owner.counted.total.clamp_(-1e-7, 1e-7).div_(grid_step(EXPONENT)).round_().mul_(grid_step(EXPONENT))
    group.sum_up()
    assert sum(group.sent.values()) <= 2 * SIZE * 4 + 2 * 8


def test_a_sum_waits_for_the_replica_that_it_belongs_to() -> None:
    group = Group((0, 1))
    late = group.owners[1]
    replicas, late.holdings.replicas = late.holdings.replicas, {}
    group.sum_up()
    assert not late.sync.is_whole()
    assert late.sync.awaited() == 0
    late.holdings.replicas.update(replicas)
    group.run()
    assert late.sync.is_whole()
    assert torch.equal(late.gradient, group.owners[0].counted.total.float()), "it counted nothing"


def test_a_sum_of_an_older_epoch_is_void() -> None:
    group = Group((0, 1))
    group.owners[0].sync.start(0, EPOCH, 0)
    group.plan.sync_epochs = [EPOCH + 1]
    for owner in group.owners:
        owner.sync.adopt(cast(Any, group.plan))
        owner.sync.start(0, EPOCH + 1, 0)
    group.run()
    for owner in group.owners:
        assert torch.equal(owner.gradient, group.expected())


def dead_owner() -> torch.Tensor:
    """Returns where the vector lies of a process that is gone."""
    address = SharedVector(SIZE, torch.float64).address()
    pid = os.fork()
    if not pid:
        signal.pause()
        os._exit(0)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    address[0] = pid
    return address


@pytest.mark.parametrize("kind", [Kind.SHARED_SUM, Kind.SHARED_TOTAL])
def test_an_owner_that_died_before_its_part_was_read_has_not_counted_nothing(kind: str) -> None:
    """The sum is not whole, and never will be: a plan without the owner makes it anew."""
    group = Group((0, 0))
    own, peer = group.owners
    own.sync.start(0, EPOCH, 0)
    if kind == Kind.SHARED_TOTAL:
        own.mailbox.put(Key(Kind.SHARED_SUM, 1, STEP, EPOCH, 0, 1), (peer.counted.shared.address(),))
    own.mailbox.put(Key(kind, 1, STEP, EPOCH, 0, 1), (dead_owner(),))
    while own.sync.progress():
        pass
    assert not own.sync.is_whole()
    assert own.sync.awaited() == 1


def test_a_look_asks_for_what_came_since_the_last_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group((0, 1, 2))
    own = group.owners[0]
    own.sync.start(0, EPOCH, 0)
    while own.sync.progress():
        pass
    asked: list[Key] = []
    poll = own.mailbox.poll

    def note(key: Key) -> tuple[torch.Tensor, ...] | None:
        asked.append(key)
        return poll(key)

    monkeypatch.setattr(own.mailbox, "poll", note)
    assert not own.sync.progress()
    assert not asked
    part = Key(Kind.SUM, 2, STEP, EPOCH, 0, 0)
    own.mailbox.put(part, ())
    assert not own.sync.progress()
    assert asked == [part]


def test_a_damaged_part_is_told_of_once_and_again_when_that_is_asked_for() -> None:
    group = Group((0, 1))
    own, told = group.owners[0], list[Key]()
    own.mailbox.when_damaged = told.append
    own.sync.start(0, EPOCH, 0)
    part = Key(Kind.SUM, 1, STEP, EPOCH, 0, 0)
    own.mailbox.put_damaged(part)
    for expected in ([part], [part, part]):
        while own.sync.progress():
            pass
        assert not own.sync.progress()
        assert told == expected
        own.mailbox.tell_damage_again()
