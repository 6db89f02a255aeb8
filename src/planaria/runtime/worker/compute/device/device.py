"""Declares what the rest of a worker asks of its device, whether that does things at once or later."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, SupportsFloat

import torch
from torch.autograd.graph import saved_tensors_hooks

from planaria.model.model import Tensors
from planaria.runtime.worker.compute.device.queues import Stream, Vector
from planaria.runtime.worker.compute.shared_memory import SharedVector, opened


class LateTensors(Protocol):
    """Tensors that are on their way to the host."""

    @property
    def are_here(self) -> bool: ...

    def tensors(self) -> Tensors:
        """Returns them once they are here."""
        ...


class Device(ABC):
    """The device of one worker.

    Attributes:
        place: where torch has it.
        is_on_host: its memory is the host's, and whatever it is given is done at once.
        lends: it has memory of its own, which other devices of the host read: messages to them stay there.
    """

    place: torch.device
    is_on_host: bool
    lends: bool

    @abstractmethod
    def in_use(self) -> AbstractContextManager[object]:
        """Makes it the device of the thread inside."""

    @abstractmethod
    def on_sums(self) -> AbstractContextManager[object]:
        """Has what is done inside go on beside computation that comes later, and after what came before."""

    @abstractmethod
    def on_shadows(self, given: Sequence[torch.Tensor]) -> AbstractContextManager[object]:
        """Has redundant computation inside go on beside computation that comes later, and after what came before; it
        uses these tensors. A backward belongs where its forward was."""

    @abstractmethod
    def after(self, *streams: Stream) -> None:
        """Has computation from now on wait for what these streams were given so far."""

    @abstractmethod
    def copied_in(self, tensors: Sequence[torch.Tensor]) -> Tensors:
        """Returns the host's tensors on the device."""

    @abstractmethod
    def fill(self, target: torch.Tensor, values: torch.Tensor) -> None:
        """Fills a tensor of the device with the host's values."""

    @abstractmethod
    def copied_out(self, tensors: Sequence[torch.Tensor]) -> Tensors | LateTensors:
        """Returns the device's tensors as they are when what it was given so far is done: on the host, or on their way
        there. On the host these are the tensors themselves."""

    @abstractmethod
    def made(self, tensors: Sequence[torch.Tensor]) -> Tensors | LateTensors:
        """Returns the device's tensors themselves, once what it was given so far is done."""

    @abstractmethod
    def vector(self, count: int, dtype: torch.dtype) -> Vector:
        """Returns a new vector of zeros, which other workers in the same memory can read in place."""

    @abstractmethod
    def opened(self, address: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
        """Returns another worker's vector, in place; None: that has ended before. May be called from any thread."""

    @abstractmethod
    def vector_of(self, tensor: torch.Tensor) -> Vector | None:
        """Returns the vector in whose memory a tensor lies; None: it lies in none that others can read."""

    @abstractmethod
    def lent(
        self, copies: Sequence[tuple[torch.Tensor, torch.Tensor]], vectors: Sequence[Vector]
    ) -> Tensors | LateTensors:
        """Copies tensors into others of the device, as pairs of what and where; returns the addresses of vectors that
        they lie in, for who may read there what was written so far."""

    @abstractmethod
    def copied_over(self, tensors: Sequence[torch.Tensor]) -> tuple[Tensors, Tensors | LateTensors]:
        """Returns copies of tensors in other workers' memory; and nothing, once these are made."""

    @abstractmethod
    def place_of(self, vector: Vector) -> Tensors | LateTensors:
        """Returns the address of a vector, for who may read there what the device was given to write so far."""

    @abstractmethod
    def finish(self) -> None:
        """Returns when all is done that the device was given, and that computation waits for."""

    @abstractmethod
    def number(self, value: torch.Tensor) -> SupportsFloat:
        """Returns a tensor's only value: a number, or what becomes one when it is needed."""

    @abstractmethod
    def kept_aside(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Copies a tensor into the host's memory; what is returned brings it back."""

    @abstractmethod
    def mark(self) -> Any:
        """Returns the point that computation is at; see `seconds_between`. None on the host, which has clocks."""

    @abstractmethod
    def seconds_between(self, first: Any, last: Any) -> float:
        """Returns how long computation took from one mark to another; waits for the second."""


class HostDevice(Device):
    """The host's processors."""

    def __init__(self) -> None:
        self.place = torch.device("cpu")
        self.is_on_host, self.lends = True, False

    def in_use(self) -> AbstractContextManager[object]:
        return nullcontext()

    def on_sums(self) -> AbstractContextManager[object]:
        return nullcontext()

    def on_shadows(self, given: Sequence[torch.Tensor]) -> AbstractContextManager[object]:
        return nullcontext()

    def after(self, *streams: Stream) -> None:
        """Does nothing: all is done at once."""

    def copied_in(self, tensors: Sequence[torch.Tensor]) -> Tensors:
        return tuple(tensors)

    def fill(self, target: torch.Tensor, values: torch.Tensor) -> None:
        target.copy_(values)

    def copied_out(self, tensors: Sequence[torch.Tensor]) -> Tensors:
        return tuple(tensors)

    def made(self, tensors: Sequence[torch.Tensor]) -> Tensors:
        return tuple(tensors)

    def vector(self, count: int, dtype: torch.dtype) -> Vector:
        return SharedVector(count, dtype)

    def opened(self, address: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
        return opened(address, dtype)

    def vector_of(self, tensor: torch.Tensor) -> None:
        return None

    def lent(self, copies: Sequence[tuple[torch.Tensor, torch.Tensor]], vectors: Sequence[Vector]) -> Tensors:
        for source, target in copies:
            target.copy_(source)
        return tuple([vector.address() for vector in vectors])

    def copied_over(self, tensors: Sequence[torch.Tensor]) -> tuple[Tensors, Tensors]:
        return tuple([tensor.clone() for tensor in tensors]), ()

    def place_of(self, vector: Vector) -> Tensors:
        return self.lent((), (vector,))

    def finish(self) -> None:
        """Does nothing: all is done at once."""

    def number(self, value: torch.Tensor) -> float:
        return float(value)

    def kept_aside(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        copy = torch.empty(tensor.size(), dtype=tensor.dtype).copy_(tensor)
        return lambda: copy

    def mark(self) -> None:
        return None

    def seconds_between(self, first: Any, last: Any) -> float:
        raise AssertionError("what a processor takes is measured by a stopwatch")


def are_here(copied: Tensors | LateTensors) -> bool:
    """Returns whether what `Device.copied_out` gave is on the host."""
    return isinstance(copied, tuple) or copied.are_here


def here(copied: Tensors | LateTensors) -> Tensors:
    """Returns what `Device.copied_out` gave, once it is on the host."""
    return copied if isinstance(copied, tuple) else copied.tensors()


def kept_on_host(parameters: Iterable[torch.Tensor], device: Device) -> saved_tensors_hooks:
    """Keeps what autograd saves within the context in the host's memory.

    Args:
        parameters: tensors that stay where they are, with all that shares their memory.
        device: where they are.
    """
    staying = {parameter.untyped_storage().data_ptr() for parameter in parameters}

    def pack(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        if tensor.untyped_storage().data_ptr() in staying:
            kept = tensor.detach()
            return lambda: kept
        return device.kept_aside(tensor)

    return saved_tensors_hooks(pack, lambda back: back())
