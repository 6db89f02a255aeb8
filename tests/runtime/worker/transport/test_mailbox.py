"""The mailbox: what is asked for is found, what is old is dropped, and an order ends every wait."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

from planaria.protocol.messages.to_worker import Stop
from planaria.protocol.worker.machine import CoordinatorGone
from planaria.runtime.worker.transport.mailbox import Interrupted, Key, Kind, Mailbox

DEADLINE_S = 10.0


def key(*, step: int = 3, epoch: int = 2, item: int = 0) -> Key:
    return Key(Kind.ACTIVATION, 1, step, epoch, item, 4)


def nothing_to_do() -> bool:
    return False


def in_a_thread(work: Callable[[], object]) -> Callable[[], object]:
    """Start it; the function returned waits for its result, or raises what it raised."""
    results: list[object] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def result() -> object:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
        if errors:
            raise errors[0]
        return results[0]

    return result


def test_it_is_known_when_state_came_that_is_taken_later(monkeypatch: pytest.MonkeyPatch) -> None:
    mailbox = Mailbox()
    for item, moment in enumerate((5.0, 9.0, 11.0)):
        monkeypatch.setattr("planaria.runtime.worker.transport.mailbox.time.monotonic", lambda moment=moment: moment)
        mailbox.put(Key(Kind.STATE, 1, 3 - item // 2, 2, item, 0), ())
    mailbox.forget_before(3, 2)
    for item in (1, 0):
        assert mailbox.poll(Key(Kind.STATE, 1, 3, 2, item, 0)) == ()
        assert mailbox.came_s == (5.0, 9.0)[item]


def test_a_message_is_taken_once() -> None:
    mailbox = Mailbox()
    mailbox.put(key(), (torch.ones(2),))
    assert mailbox.poll(key(item=1)) is None
    found = mailbox.poll(key())
    assert found is not None
    assert found[0].tolist() == [1, 1]
    assert mailbox.poll(key()) is None
    assert len(mailbox) == 0


def test_a_wait_ends_when_the_message_arrives() -> None:
    mailbox = Mailbox()
    result = in_a_thread(lambda: mailbox.take(key(item=5), nothing_to_do))
    mailbox.put(key(item=4), ())
    mailbox.put(key(item=5), (torch.zeros(1),))
    assert result() == (torch.zeros(1),)


def test_other_work_is_done_while_waiting() -> None:
    mailbox = Mailbox()
    left = [3]

    def work() -> bool:
        left[0] -= 1
        if left[0] == 0:
            mailbox.put(key(), ())
        return left[0] > 0

    assert mailbox.take(key(), work) == ()
    assert left == [0]


@pytest.mark.parametrize("order", [Stop(reason="x"), CoordinatorGone()])
def test_an_order_ends_a_wait_and_stays_to_be_read(order: Stop | CoordinatorGone) -> None:
    mailbox = Mailbox()
    result = in_a_thread(lambda: mailbox.take(key(), nothing_to_do))
    mailbox.put_order(order)
    with pytest.raises(Interrupted):
        result()
    assert mailbox.has_orders
    assert mailbox.next_order(block=True) == order
    assert mailbox.next_order(block=False) is None


def test_an_order_goes_before_what_has_arrived() -> None:
    mailbox = Mailbox()
    mailbox.put(key(), ())
    mailbox.put_order(CoordinatorGone())
    with pytest.raises(Interrupted):
        mailbox.take(key(), nothing_to_do)
    mailbox.next_order(block=False)
    assert mailbox.take(key(), nothing_to_do) == ()


def test_an_error_of_a_helper_reaches_the_main_thread_wherever_it_waits() -> None:
    for wait in (lambda box: box.take(key(), nothing_to_do), lambda box: box.next_order(block=True)):
        mailbox = Mailbox()
        result = in_a_thread(lambda wait=wait, mailbox=mailbox: wait(mailbox))  # type: ignore[misc]
        mailbox.put_error(ValueError("broken"))
        with pytest.raises((Interrupted, ValueError)):
            result()
        with pytest.raises(ValueError, match="broken"):
            mailbox.next_order(block=False)


def test_earlier_steps_are_forgotten() -> None:
    mailbox = Mailbox()
    for step in (2, 3, 4):
        mailbox.put(key(step=step), ())
    mailbox.forget_before(3, generation=2)
    mailbox.put(key(step=2), ())
    mailbox.put(key(step=1, epoch=1), ())
    assert [step for step in (1, 2, 3, 4) if mailbox.poll(key(step=step)) is not None] == [3, 4]
    assert len(mailbox) == 0


def test_what_a_newer_plan_sends_for_an_earlier_step_is_kept() -> None:
    """The job went back to step 2 under plan 3; this worker, in step 5 under plan 2, has not heard of it yet."""
    mailbox = Mailbox()
    mailbox.forget_before(5, generation=2)
    mailbox.put(key(step=2, epoch=2), ())
    mailbox.put(key(step=2, epoch=3), ())
    mailbox.put(key(step=5, epoch=2), ())
    mailbox.forget_older_plans(3)
    mailbox.forget_before(2, generation=3)
    assert mailbox.poll(key(step=5, epoch=2)) is None
    assert mailbox.poll(key(step=2, epoch=2)) is None
    assert mailbox.poll(key(step=2, epoch=3)) == ()


def test_what_arrives_before_the_first_plan_is_kept() -> None:
    mailbox = Mailbox()
    mailbox.put(key(step=1, epoch=1), ())
    mailbox.forget_older_plans(1)
    mailbox.forget_before(1, generation=1)
    assert mailbox.poll(key(step=1, epoch=1)) == ()
