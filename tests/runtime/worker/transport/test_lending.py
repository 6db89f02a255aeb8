"""What is lent between workers of one memory: slots are used again, vectors lent where they lie, and what is not there
any more is passed over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from planaria.plan.plan import WorkerId
from planaria.runtime.worker.compute.device.device import here
from planaria.runtime.worker.compute.device.stand_in import StandInQueues
from planaria.runtime.worker.compute.device.streams import StreamDevice
from planaria.runtime.worker.transport.frames import Loan
from planaria.runtime.worker.transport.lending import Lending
from planaria.runtime.worker.transport.mailbox import Key, Kind, Lent, Mailbox

ONE, TWO = WorkerId(1), WorkerId(2)


@pytest.fixture
def device() -> Iterator[StreamDevice]:
    made = StreamDevice(torch.device("cpu"), StandInQueues(), lends=True)
    with made.in_use():
        yield made


@pytest.fixture
def lending(device: StreamDevice) -> Lending:
    return Lending(device)


def lend(lending: Lending, step: int, *tensors: torch.Tensor, peer: WorkerId = ONE) -> tuple[Loan, list[torch.Tensor]]:
    loan, late = lending.lend(peer, step, tensors)
    return loan, list(here(late))


def borrowed(lending: Lending, loan: Loan, addresses: list[torch.Tensor], item: int = 0) -> Lent | None:
    mailbox, key = Mailbox(), Key(Kind.ACTIVATION, 2, 1, 1, item, 1)
    lending.arrived(mailbox, key, loan, addresses)
    found = mailbox.poll(key)
    assert found is None or isinstance(found, Lent)
    return found


def values(device: StreamDevice, count: int) -> torch.Tensor:
    return device.copied_in((torch.arange(float(count)),))[0]


def test_a_message_is_read_where_it_lies(device: StreamDevice, lending: Lending) -> None:
    given = values(device, 6).reshape(2, 3)
    found = borrowed(Lending(device), *lend(lending, 1, given, given.t()))
    assert found is not None
    straight, turned = here(device.copied_out(device.copied_over(found.tensors)[0]))
    assert torch.equal(straight, torch.arange(6.0).reshape(2, 3))
    assert torch.equal(turned, torch.arange(6.0).reshape(2, 3).t())
    assert found.sender == TWO


def test_a_slot_is_used_again_once_it_was_read(device: StreamDevice, lending: Lending) -> None:
    given = values(device, 6)
    first, addresses = lend(lending, 1, given)
    _, others = lend(lending, 1, given)
    assert not torch.equal(addresses[0], others[0])
    lending.arrived(Mailbox(), Key(Kind.READ, 1, 0, 0, first.number, 0), None, ())
    assert torch.equal(lend(lending, 1, given)[1][0], addresses[0])


def test_a_slot_that_nobody_asks_for_is_used_again_two_steps_later(device: StreamDevice, lending: Lending) -> None:
    given = values(device, 6)
    _, addresses = lend(lending, 1, given)
    assert not torch.equal(lend(lending, 2, given)[1][0], addresses[0])
    assert torch.equal(lend(lending, 3, given)[1][0], addresses[0])


def test_the_slots_of_who_leaves_are_nobodys(device: StreamDevice, lending: Lending) -> None:
    given = values(device, 6)
    gone, addresses = lend(lending, 1, given, peer=TWO)
    lending.keep_only([ONE])
    lending.returned(gone.number)
    assert not torch.equal(lend(lending, 1, given)[1][0], addresses[0])


def test_vectors_are_lent_where_they_are(device: StreamDevice, lending: Lending) -> None:
    vector = device.vector(8, torch.float32)
    device.fill(vector.tensor, torch.arange(8.0))
    loan, addresses = lend(lending, 1, vector.tensor[2:5])
    assert loan.number == 0
    assert torch.equal(addresses[0], vector.address())
    found = borrowed(Lending(device), loan, addresses)
    assert found is not None
    assert here(device.copied_out(device.copied_over(found.tensors)[0]))[0].tolist() == [2.0, 3.0, 4.0]


def test_what_is_not_there_any_more_is_passed_over_and_what_never_was_is_not(
    device: StreamDevice, lending: Lending, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opens(address: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        raise RuntimeError("it cannot be read")

    given = values(device, 6)
    reader, unlucky = Lending(device), Lending(device)
    assert borrowed(reader, *lend(lending, 1, given)) is not None
    monkeypatch.setattr(reader._reader, "_opens", opens)
    monkeypatch.setattr(unlucky._reader, "_opens", opens)
    assert borrowed(reader, *lend(lending, 1, given)) is None
    with pytest.raises(RuntimeError, match="it cannot be read"):
        borrowed(unlucky, *lend(lending, 1, given))
