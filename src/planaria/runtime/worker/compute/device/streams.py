"""A device that computes while its host goes on: computation, redundant computation, copies in and out, and sums, each
a stream.

The host waits where it needs a number or bytes, and nowhere else. Each method that hands a tensor from one stream to
another has the second wait for the first, and tells the allocator who uses it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch

from planaria.model.model import Tensors
from planaria.runtime.worker.compute.device.device import Device
from planaria.runtime.worker.compute.device.queues import Event, Queues, Stream, Vector


class StreamDevice(Device):
    """A device with streams.

    Args:
        place: where torch has it.
        queues: its streams.
        lends: see `Device`.
    """

    def __init__(self, place: torch.device, queues: Queues, *, lends: bool = False) -> None:
        self.place = place
        self.is_on_host = False
        self.lends = lends
        self._vectors = weakref.WeakValueDictionary[int, Vector]()
        """Those that others can read, by where they begin."""
        self.queues = queues
        self._current = Stream.COMPUTE

    def in_use(self) -> AbstractContextManager[object]:
        return self.queues.in_use()

    def on_sums(self) -> AbstractContextManager[object]:
        self.queues.wait(Stream.SUMS, self.queues.record(Stream.COMPUTE))
        return self._at(Stream.SUMS)

    def on_shadows(self, given: Sequence[torch.Tensor]) -> AbstractContextManager[object]:
        self.queues.wait(Stream.SHADOWS, self.queues.record(Stream.COMPUTE))
        for tensor in given:
            self.queues.uses(tensor, Stream.SHADOWS)
        return self._at(Stream.SHADOWS)

    @contextmanager
    def _at(self, stream: Stream) -> Iterator[None]:
        before, self._current = self._current, stream  # sums go on while a shadow waits for others of its stage
        try:
            with self.queues.on(stream):
                yield
        finally:
            self._current = before

    def after(self, *streams: Stream) -> None:
        for stream in streams:
            self.queues.wait(Stream.COMPUTE, self.queues.record(stream))

    def copied_in(self, tensors: Sequence[torch.Tensor]) -> Tensors:
        return self._brought_in([self._staged(tensor) for tensor in tensors])

    def fill(self, target: torch.Tensor, values: torch.Tensor) -> None:
        self.queues.copy(target, self._staged(values), self._current)

    def _staged(self, values: torch.Tensor) -> torch.Tensor:
        """Returns the host's values in pinned memory, which is nobody else's until copies from it are done."""
        return self.queues.pinned(values.size(), values.dtype).copy_(values)

    def _brought_in(self, staged: Sequence[torch.Tensor]) -> Tensors:
        """Returns tensors on the device, copied from pinned memory or another worker's, for whoever is at work now."""
        made = []
        for source in staged:
            with self.queues.on(Stream.COPIES_IN):
                target = torch.empty(source.size(), dtype=source.dtype, device=self.place)
            self.queues.copy(target, source, Stream.COPIES_IN)
            self.queues.uses(target, self._current)
            made.append(target)
        self.queues.wait(self._current, self.queues.record(Stream.COPIES_IN))
        return tuple(made)

    def copied_out(self, tensors: Sequence[torch.Tensor]) -> OnTheirWay:
        pinned = [self.queues.pinned(source.size(), source.dtype) for source in tensors]
        return OnTheirWay(self.queues, pinned, self._put(tuple(zip(tensors, pinned, strict=True))))

    def made(self, tensors: Sequence[torch.Tensor]) -> OnTheirWay:
        return OnTheirWay(self.queues, tensors, self.queues.record(self._current))

    def _put(self, copies: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Event:
        """Copies tensors out, as pairs of what and where; returns when that is done."""
        self.queues.wait(Stream.COPIES_OUT, self.queues.record(self._current))
        for source, target in copies:
            self.queues.copy(target, source.detach(), Stream.COPIES_OUT)
            self.queues.uses(source, Stream.COPIES_OUT)
        return self.queues.record(Stream.COPIES_OUT)

    def vector(self, count: int, dtype: torch.dtype) -> Vector:
        if not self.lends:
            return OwnVector(count, dtype, self.place)
        made = self.queues.vector(count, dtype)
        self._vectors[made.tensor.untyped_storage().data_ptr()] = made
        return made

    def vector_of(self, tensor: torch.Tensor) -> Vector | None:
        return self._vectors.get(tensor.untyped_storage().data_ptr())

    def lent(self, copies: Sequence[tuple[torch.Tensor, torch.Tensor]], vectors: Sequence[Vector]) -> OnTheirWay:
        event = self._put(copies) if copies else self.queues.record(self._current)
        return OnTheirWay(self.queues, [vector.address() for vector in vectors], event)

    def copied_over(self, tensors: Sequence[torch.Tensor]) -> tuple[Tensors, OnTheirWay]:
        made = self._brought_in(tensors)
        return made, OnTheirWay(self.queues, (), self.queues.record(Stream.COPIES_IN))

    def opened(self, address: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
        return self.queues.opened(address, dtype)

    def place_of(self, vector: Vector) -> OnTheirWay:
        return self.lent((), (vector,))

    def finish(self) -> None:
        self.queues.synchronize(self.queues.record(Stream.COMPUTE))

    def number(self, value: torch.Tensor) -> LateNumber:
        return LateNumber(self.copied_out((value,)))

    def kept_aside(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        aside = self.copied_out((tensor,))

        def back() -> torch.Tensor:
            self.queues.wait(Stream.COPIES_IN, aside.event)
            return self._brought_in(aside.pinned)[0]

        return back

    def mark(self) -> Event:
        return self.queues.record(Stream.COMPUTE)

    def seconds_between(self, first: Event, last: Event) -> float:
        self.queues.synchronize(last)
        return self.queues.seconds_between(first, last)


class OwnVector:
    """A vector of a device whose memory nobody else reads."""

    def __init__(self, count: int, dtype: torch.dtype, place: torch.device) -> None:
        self.tensor = torch.zeros(count, dtype=dtype, device=place)

    def address(self) -> torch.Tensor:
        raise AssertionError("nobody else can read it")


class OnTheirWay:
    """Tensors that can be handed on once an event of the device has happened: copies on the host, addresses of what
    is made then, or that itself.

    Attributes:
        pinned: those.
        event: when they, or what they tell of, are there.
    """

    def __init__(self, queues: Queues, pinned: Sequence[torch.Tensor], event: Event) -> None:
        self.pinned = pinned
        self.event = event
        self._queues = queues

    @property
    def are_here(self) -> bool:
        return self._queues.is_over(self.event)

    def tensors(self) -> Tensors:
        self._queues.synchronize(self.event)
        return tuple(self.pinned)


class LateNumber:
    """A number that is made on the device; who makes a float of it waits for it, once."""

    def __init__(self, late: OnTheirWay) -> None:
        self._late: OnTheirWay | None = late
        self._value = 0.0

    def __float__(self) -> float:
        if self._late is not None:
            self._value = float(self._late.tensors()[0])
            self._late = None
        return self._value
