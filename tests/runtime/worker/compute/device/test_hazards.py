"""The checker of hazards: it finds uses of memory in no order, and nothing else."""

from __future__ import annotations

import pytest
import torch

from planaria.runtime.worker.compute.device.hazards import Clocks, Hazard

HOST, ONE, TWO = "host", "one", "two"


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def memory() -> torch.Tensor:
    return torch.zeros(8)


def use(clocks: Clocks, actor: str, tensor: torch.Tensor, *, writes: bool) -> None:
    clocks.begin(actor, HOST)
    clocks.use(actor, tensor, "a test", is_write=writes)


@pytest.mark.parametrize(("first", "second"), [(True, True), (True, False), (False, True)])
def test_two_uses_in_no_order_are_a_hazard_if_one_writes(
    first: bool, second: bool, clocks: Clocks, memory: torch.Tensor
) -> None:
    use(clocks, ONE, memory, writes=first)
    with pytest.raises(Hazard, match="no event orders that with"):
        use(clocks, TWO, memory, writes=second)


def test_two_that_read_need_no_order(clocks: Clocks, memory: torch.Tensor) -> None:
    use(clocks, ONE, memory, writes=False)
    use(clocks, TWO, memory, writes=False)


def test_other_bytes_of_the_same_memory_need_no_order(clocks: Clocks, memory: torch.Tensor) -> None:
    use(clocks, ONE, memory[:4], writes=True)
    use(clocks, TWO, memory[4:], writes=True)
    with pytest.raises(Hazard):
        use(clocks, TWO, memory[3:5], writes=False)


def test_an_event_orders_what_was_done_before_it_and_nothing_later(clocks: Clocks, memory: torch.Tensor) -> None:
    use(clocks, ONE, memory, writes=True)
    event = clocks.now(ONE)
    clocks.after(TWO, event)
    use(clocks, TWO, memory, writes=False)
    use(clocks, ONE, memory[:2], writes=False)
    with pytest.raises(Hazard):
        use(clocks, TWO, memory, writes=True)


def test_orders_go_on_from_one_to_the_next(clocks: Clocks, memory: torch.Tensor) -> None:
    use(clocks, ONE, memory, writes=True)
    clocks.after("three", clocks.now(ONE))
    clocks.after(TWO, clocks.now("three"))
    use(clocks, TWO, memory, writes=True)


def test_what_the_host_has_waited_for_is_before_all_that_it_asks_for_later(
    clocks: Clocks, memory: torch.Tensor
) -> None:
    use(clocks, ONE, memory, writes=True)
    clocks.after(HOST, clocks.now(ONE))
    use(clocks, TWO, memory, writes=True)


def test_the_host_waits_too(clocks: Clocks, memory: torch.Tensor) -> None:
    use(clocks, ONE, memory, writes=True)
    with pytest.raises(Hazard):
        use(clocks, HOST, memory, writes=False)


def test_a_reader_that_a_later_one_hides_is_not_forgotten(clocks: Clocks, memory: torch.Tensor) -> None:
    use(clocks, ONE, memory, writes=False)
    use(clocks, TWO, memory, writes=False)
    clocks.after("three", clocks.now(TWO))
    with pytest.raises(Hazard):
        use(clocks, "three", memory, writes=True)


@pytest.mark.parametrize("how", ["nobody waits", "its owner waits", "the host waits", "the allocator is told"])
def test_memory_is_given_back_after_its_last_use(how: str, clocks: Clocks) -> None:
    memory = torch.zeros(8)
    use(clocks, ONE, memory, writes=True)
    buffer = clocks.buffer(memory, ONE)
    buffer.is_device = True
    clocks.after(TWO, clocks.now(ONE))
    use(clocks, TWO, memory, writes=False)
    if how == "its owner waits":
        clocks.after(ONE, clocks.now(TWO))
    elif how == "the host waits":
        clocks.after(HOST, clocks.now(TWO))
    elif how == "the allocator is told":
        buffer.told.add(TWO)
    view = memory[1:]
    del memory
    clocks.begin(ONE, HOST)  # a view keeps it
    del view
    clocks.begin(TWO, HOST)  # which is not given it
    if how == "nobody waits":
        with pytest.raises(Hazard, match="memory of one is given back in the middle of"):
            clocks.begin(ONE, HOST)
    else:
        clocks.begin(ONE, HOST)


def test_an_owner_may_wait_after_its_memory_was_given_back_and_before_it_is_given_it(clocks: Clocks) -> None:
    memory = torch.zeros(8)
    use(clocks, ONE, memory, writes=True)
    clocks.buffer(memory, ONE).is_device = True
    clocks.after(TWO, clocks.now(ONE))
    use(clocks, TWO, memory, writes=False)
    del memory
    clocks.after(ONE, clocks.now(TWO))
    clocks.begin(ONE, HOST)
