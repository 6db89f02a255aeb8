"""The wire of one control connection: messages as bytes, and plans as what differs from the one before.

Where a schedule wants it, every message passes through here, in the order in which it arrives. A plan must come out as
it went in.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from planaria.protocol.messages.from_worker import FromWorker, decode_from_worker
from planaria.protocol.messages.message import encode
from planaria.protocol.messages.plan_delta import Orders, encoded
from planaria.protocol.messages.to_worker import Challenge, PlanMessage, ToWorker


class ChangedOnTheWire(AssertionError):
    """A plan that arrived differs from what was sent."""


class Wire:
    """The wire of one connection, in both directions.

    Args:
        is_of_another_release: the worker's messages have a field that this release does not know.
    """

    def __init__(self, *, is_of_another_release: bool = False) -> None:
        self._is_of_another_release = is_of_another_release
        self._orders = Orders()
        self._last: PlanMessage | None = None

    def order(self, message: ToWorker | Challenge) -> Callable[[], ToWorker | Challenge]:
        """Encodes a message to a worker; returns what reads it when it arrives."""
        data = encoded(message, self._last)
        if isinstance(message, PlanMessage):
            self._last = message
        return partial(self._ordered, data, message)

    def _ordered(self, data: bytes, sent: ToWorker | Challenge) -> ToWorker | Challenge:
        """Returns the message as it arrives. Raises ChangedOnTheWire."""
        message = self._orders.decode(data)
        if isinstance(sent, PlanMessage) and message != sent:
            raise ChangedOnTheWire(f"{sent!r:.600} came as {message!r:.600}")
        return message

    def news(self, message: FromWorker) -> Callable[[], FromWorker]:
        """Encodes a message from a worker; returns what reads it when it arrives."""
        data = encode(message)
        if self._is_of_another_release:
            data = msgspec.msgpack.encode(msgspec.msgpack.decode(data) | {"of_another_release": 1})
        return partial(decode_from_worker, data)
