"""Holds everything that reaches a worker, and has its main thread wait for it.

One lock and one condition for data and control alike, so that a wait for a tensor ends at once when the coordinator
has something to say.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from planaria.model.model import Tensors
from planaria.plan.plan import WorkerId
from planaria.protocol.messages.to_worker import ToWorker
from planaria.protocol.worker.machine import CoordinatorBack, CoordinatorGone
from planaria.protocol.worker.mail import Key, Kind, Mail

__all__ = ["Interrupted", "Key", "Kind", "Lent", "Mailbox", "Message"]


class Interrupted(BaseException):
    """The coordinator has spoken: the work under way is put down. No error: what handles those lets it pass."""


@dataclass(frozen=True, slots=True)
class Lent:
    """A message that lies in its sender's memory.

    Attributes:
        tensors: in place.
        sender: whose they are.
        number: by which it knows the loan; 0: it need not be told that they were read.
    """

    tensors: Tensors
    sender: WorkerId
    number: int


Message = Tensors | Lent
"""What arrives from a peer."""

ControlEvent = ToWorker | CoordinatorGone | CoordinatorBack


class Mailbox:
    """Thread-safe store of arrived data, and queue of arrived orders.

    Attributes:
        came_s: when the state came that was taken last, of the monotonic clock.
    """

    def __init__(self) -> None:
        self.condition = threading.Condition(threading.Lock())
        self._mail: Mail[Message] = Mail()
        self._places: dict[Key, tuple[torch.Tensor, ...]] = {}
        self._orders: deque[ControlEvent] = deque()
        self._arrivals = 0
        self._error: BaseException | None = None
        self.came_s = 0.0
        self.when_damaged: Callable[[Key], None] = lambda key: None
        """Called by a thread that wants a message that arrived damaged, and goes on waiting, for a new plan."""

    def put(self, key: Key, message: Message) -> None:
        with self.condition:
            if self._mail.put(key, message, time.monotonic()):
                self._arrivals += 1
                self.condition.notify_all()

    def expect(self, places: Mapping[Key, tuple[torch.Tensor, ...]]) -> None:
        """Has messages that are about to come read into these tensors, if they fit and have not begun to come; until
        the next such call."""
        self._places = dict(places)

    def place(self, key: Key) -> tuple[torch.Tensor, ...] | None:
        """Returns the tensors into which a message goes that begins to come; None: new ones."""
        return self._places.pop(key, None)

    def put_damaged(self, key: Key) -> None:
        """Puts down a message that came, but not as it was sent."""
        with self.condition:
            self._mail.put_damaged(key)
            self._arrivals += 1
            self.condition.notify_all()

    def put_order(self, order: ControlEvent) -> None:
        with self.condition:
            self._orders.append(order)
            self.condition.notify_all()

    def put_error(self, error: BaseException) -> None:
        """Puts down an error of a helper thread: the main thread raises it at its next look."""
        with self.condition:
            self._error = error
            self.condition.notify_all()

    def next_order(self, *, block: bool) -> ControlEvent | None:
        with self.condition:
            while block and not self._orders and self._error is None:
                self.condition.wait()
            if self._error is not None:
                raise self._error
            return self._orders.popleft() if self._orders else None

    @property
    def has_orders(self) -> bool:
        return bool(self._orders) or self._error is not None

    def take(self, key: Key, idle: Callable[[], bool]) -> Message:
        """Waits for a message. Raises Interrupted as soon as there is an order.

        Args:
            idle: does a piece of other work while there is nothing else to do; False when it has none.
        """
        found: list[Message] = []

        def arrived() -> bool:
            message = self.poll(key)
            if message is not None:
                found.append(message)
            return message is not None

        self.wait_until(arrived, idle)
        return found[0]

    def wait_until(self, condition: Callable[[], bool], idle: Callable[[], bool]) -> None:
        """Waits until `condition` holds, asked anew whenever something arrives. Raises Interrupted on an order."""
        while True:
            arrivals = self._arrivals
            if self.has_orders:
                raise Interrupted
            if condition():
                return
            if not idle():
                self._wait_for_arrivals(arrivals)

    def _wait_for_arrivals(self, seen: int) -> None:
        """Waits until more than the `seen` messages have arrived, or an order."""
        with self.condition:
            while self._arrivals == seen and not self.has_orders:
                self.condition.wait()

    def poll(self, key: Key) -> Message | None:
        """Takes a message if it is there."""
        with self.condition:
            is_damaged, found = self._mail.came_damaged(key), self._mail.take(key)
            self.came_s = self._mail.came_s
        if is_damaged:
            self.when_damaged(key)
        return found

    def news_of_sums(self) -> Sequence[Key]:
        """Returns messages of sums that came, whole or damaged, since it was last asked; they may be gone by now."""
        with self.condition:
            return self._mail.news_of_sums()

    def tell_damage_again(self) -> None:
        with self.condition:
            self._mail.tell_damage_again()

    def forget_before(self, step: int, generation: int) -> None:
        with self.condition:
            self._mail.forget_before(step, generation)

    def forget_older_plans(self, generation: int) -> None:
        with self.condition:
            self._mail.forget_older_plans(generation)

    def __len__(self) -> int:
        return len(self._mail)
