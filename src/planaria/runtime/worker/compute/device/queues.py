"""The seam between a worker and a device that does things later: streams, and events that order them.

What is given to one stream is done in the order in which it was given; what is given to two is in no order, unless one
waits for an event that was recorded on the other.
"""

from __future__ import annotations

import enum
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch


class Stream(enum.Enum):
    """What a device does side by side."""

    COMPUTE = "computation"
    COPIES_IN = "copies in"
    COPIES_OUT = "copies out"
    SUMS = "sums"
    SHADOWS = "shadows"


Event = Any
"""A point of a stream: all that was given to it before. Each kind of device has its own."""


class Vector(Protocol):
    """A vector that other workers of the host may be able to read in place.

    Attributes:
        tensor: flat, zeroed at first.
    """

    tensor: torch.Tensor

    def address(self) -> torch.Tensor:
        """Returns what a peer needs to read it: numbers on the host, the same each time, and no other vector's."""
        ...


class Queues(Protocol):
    """Streams of one device. Nothing here makes the host wait, but `synchronize`."""

    def in_use(self) -> AbstractContextManager[object]:
        """Makes it the device of the thread inside."""
        ...

    def on(self, stream: Stream) -> AbstractContextManager[object]:
        """Gives to this stream what torch launches inside; outside, it goes to computation."""
        ...

    def record(self, stream: Stream) -> Event:
        """Returns the point that the stream is at."""
        ...

    def wait(self, stream: Stream, event: Event) -> None:
        """Has what is given to the stream from now on begin after the event."""
        ...

    def synchronize(self, event: Event) -> None:
        """Returns when the event has happened."""
        ...

    def is_over(self, event: Event) -> bool:
        """Returns whether the event has happened."""
        ...

    def seconds_between(self, first: Event, last: Event) -> float:
        """Returns how long the stream took from one event to another. Both must have happened."""
        ...

    def pinned(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        """Returns new memory of the host that copies go to and come from while the host goes on."""
        ...

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        """Gives a copy to the stream: from pinned memory to the device's, the other way, or within the device's."""
        ...

    def vector(self, count: int, dtype: torch.dtype) -> Vector:
        """Returns new memory of the device that other processes of the host can read."""
        ...

    def opened(self, address: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
        """Returns another process's vector, in place; None: that has ended before. What was opened once can be read
        after its owner's end. May be called from any thread."""
        ...

    def uses(self, tensor: torch.Tensor, stream: Stream) -> None:
        """Notes that the stream uses a tensor of another one's: its memory is nobody's until what was given to the
        stream by the tensor's end is done."""
        ...
