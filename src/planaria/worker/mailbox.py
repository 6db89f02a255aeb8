"""Where everything that reaches a worker is put down, and where its main thread waits for it.

One lock and one condition for data and control alike, so that a wait for a tensor ends at once when the coordinator
has something to say.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch

from planaria.protocol.messages import ToWorker
from planaria.protocol.worker import CoordinatorBack, CoordinatorGone


class Interrupted(Exception):
    """The coordinator has spoken: what is being done is put down."""


class Kind:
    """Kinds of data messages."""

    ACTIVATION = "a"
    GRADIENT = "g"
    SUM = "s"
    SHARED_SUM = "m"
    """Where a sum lies in the memory of this host, in place of the sum itself."""
    STATE = "t"


@dataclass(frozen=True, slots=True)
class Key:
    """Names one data message between two workers.

    Attributes:
        kind: of `Kind`.
        sender: who sends it.
        step: which it belongs to.
        epoch: a route's birth, a group's sync epoch, or the plan's generation for state. An older one never matches.
        item: microbatch or group.
        layer: boundary layer of an activation or gradient; 0 otherwise.
    """

    kind: str
    sender: int
    step: int
    epoch: int
    item: int
    layer: int


ControlEvent = ToWorker | CoordinatorGone | CoordinatorBack


class Mailbox:
    """Thread-safe store of arrived data, and queue of arrived orders."""

    def __init__(self) -> None:
        self.condition = threading.Condition(threading.Lock())
        self._data: dict[Key, tuple[torch.Tensor, ...]] = {}
        self._orders: deque[ControlEvent] = deque()
        self._lowest_step = 0
        self._generation = -1
        self._arrivals = 0
        self._error: BaseException | None = None
        self._damaged: set[Key] = set()
        self.when_damaged: Callable[[Key], None] = lambda key: None
        """Called by whoever wants a message that arrived damaged, and goes on waiting: for a new plan."""

    def put(self, key: Key, tensors: tuple[torch.Tensor, ...]) -> None:
        with self.condition:
            # What a newer plan sends may be for an earlier step: the job went back, and the news of it comes later.
            if key.step < self._lowest_step and key.epoch <= self._generation:
                return
            self._data[key] = tensors
            self._arrivals += 1
            self.condition.notify_all()

    def put_damaged(self, key: Key) -> None:
        """A message came, and not as it was sent. That matters only if it is still wanted: what an older plan sent may
        have changed on its way."""
        with self.condition:
            self._damaged.add(key)
            self._arrivals += 1
            self.condition.notify_all()

    def put_order(self, order: ControlEvent) -> None:
        with self.condition:
            self._orders.append(order)
            self.condition.notify_all()

    def put_error(self, error: BaseException) -> None:
        """A helper thread failed: the main thread raises it at its next look."""
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

    @property
    def is_coordinator_news(self) -> bool:
        """Whether another coordinator was found after all orders that are still to be carried out."""
        with self.condition:
            return any(isinstance(order, CoordinatorBack) for order in self._orders)

    def take(self, key: Key, idle: Callable[[], bool]) -> tuple[torch.Tensor, ...]:
        """Wait for a message. Raises Interrupted as soon as there is an order.

        Args:
            idle: does a piece of other work while there is nothing else to do; False when it has none.
        """
        found: list[tuple[torch.Tensor, ...]] = []

        def arrived() -> bool:
            tensors = self.poll(key)
            if tensors is not None:
                found.append(tensors)
            return tensors is not None

        self.wait_until(arrived, idle)
        return found[0]

    def wait_until(self, condition: Callable[[], bool], idle: Callable[[], bool]) -> None:
        """Wait until `condition` holds, asked anew whenever something arrives. Raises Interrupted on an order."""
        while True:
            arrivals = self._arrivals
            if self.has_orders:
                raise Interrupted
            if condition():
                return
            if not idle():
                self._wait_for_arrivals(arrivals)

    def _wait_for_arrivals(self, seen: int) -> None:
        """Sleep until more than the messages that were `seen` has arrived, or an order."""
        with self.condition:
            while self._arrivals == seen and not self.has_orders:
                self.condition.wait()

    def poll(self, key: Key) -> tuple[torch.Tensor, ...] | None:
        """Take a message if it is there."""
        with self.condition:
            is_damaged = key in self._damaged
            self._damaged.discard(key)
            found = self._data.pop(key, None)
        if is_damaged:
            self.when_damaged(key)
        return found

    def forget_before(self, step: int, generation: int) -> None:
        """Drop what arrived, or still arrives, for steps before this one, unless a later plan sent it."""
        with self.condition:
            self._lowest_step, self._generation = step, generation
            self._drop(lambda key: key.step < step and key.epoch <= generation)

    def forget_older_plans(self, generation: int) -> None:
        """Drop what plans before this generation sent: the job went back to an earlier state.

        What peers send under the new plan may be here already, before this worker has heard of it.
        """
        with self.condition:
            self._drop(lambda key: key.epoch < generation)

    def _drop(self, unwanted: Callable[[Key], bool]) -> None:
        for key in [key for key in self._data if unwanted(key)]:
            del self._data[key]
        self._damaged = {key for key in self._damaged if not unwanted(key)}

    def __len__(self) -> int:
        return len(self._data)
