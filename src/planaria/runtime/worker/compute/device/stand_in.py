"""A stand-in for a GPU's streams: it computes on the host, and holds what it is given to what its events order.

Every operation of torch is looked at as it is given to a stream: what it reads and writes has to be ordered with all
other uses of the same memory (`hazards`). Numbers are computed at once, so they are right whenever the orders are.
Copies to the host alone arrive as late as they may: when somebody waits for an event behind them. Who does not wait
finds bytes that nobody wrote. Memory that other processes read in place is the host's shared memory.

No thread runs here: who is late does not hang on chance.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from planaria.runtime.worker.compute.device.hazards import Actor, Clock, Clocks, Hazard
from planaria.runtime.worker.compute.device.queues import Stream
from planaria.runtime.worker.compute.shared_memory import SharedVector, opened

HOST = "the host"
OTHERS = "other processes"
"""To which shared memory belongs: it is given back once none of them reads it."""
_NOT_WRITTEN = 0xA5
"""Bytes of pinned memory that no copy has come to."""


@dataclass(frozen=True, slots=True)
class StandInEvent:
    """A point of a stream: its clock there, how many copies to the host it had been given, and when that was."""

    stream: Stream
    clock: Clock
    num_copies: int
    at_s: float


class StandInQueues:
    """Streams that are checked; see `planaria.runtime.worker.compute.device.queues.Queues`.

    Args:
        clocks: of several devices, whose uses of each other's memory are checked too.
        name: of this one among them.

    Attributes:
        clock_s: seconds, by which streams are timed.
    """

    clock_s: Callable[[], float] = staticmethod(time.monotonic)

    def __init__(self, clocks: Clocks | None = None, name: str = "") -> None:
        self._clocks = Clocks() if clocks is None else clocks
        self.host: Actor = f"{HOST}{name}"
        self._actors: Mapping[Stream, Actor] = {stream: f"{stream}{name}" for stream in Stream}
        self._current = Stream.COMPUTE
        self._late: dict[Stream, list[Callable[[], object]]] = {stream: [] for stream in Stream}
        """Copies to the host that have not arrived."""
        self._num_copies = dict.fromkeys(Stream, 0)
        """That each stream was given."""

    def in_use(self) -> AbstractContextManager[object]:
        return _Watch(self)

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self._current = self._current, stream
        try:
            yield
        finally:
            self._current = before

    # Events

    def record(self, stream: Stream) -> StandInEvent:
        return StandInEvent(stream, self._clocks.now(self._actors[stream]), self._num_copies[stream], self.clock_s())

    def wait(self, stream: Stream, event: StandInEvent) -> None:
        self._clocks.after(self._actors[stream], event.clock)
        self._arrive(event.stream, event.num_copies)

    def synchronize(self, event: StandInEvent) -> None:
        self._clocks.after(self.host, event.clock)
        self._arrive(event.stream, event.num_copies)

    def is_over(self, event: StandInEvent) -> bool:
        """Returns whether the host knows that the event has happened: it might have at any time, and here never has
        before somebody waits."""
        return self._clocks.has_seen(self.host, event.clock)

    def seconds_between(self, first: StandInEvent, last: StandInEvent) -> float:
        if not (self.is_over(first) and self.is_over(last)):
            raise Hazard("a stream is timed by an event that may not have happened")
        return last.at_s - first.at_s

    # Copies

    def pinned(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        with _disable_current_modes():
            made = torch.empty(shape, dtype=dtype)
            if made.numel():
                made.reshape(-1).view(torch.uint8).fill_(_NOT_WRITTEN)
        self._clocks.buffer(made, self.host).is_device = False
        return made

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        actor = self._actors[stream]
        ends = [self._clocks.buffer(tensor, actor) for tensor in (source, target)]
        if not any(end.is_device is not False for end in ends):
            raise Hazard("a copy beside the host's work is not from or to the device's memory")
        for end in ends:
            end.is_device = end.is_device is not False
        self._arrive(stream)
        self._clocks.begin(actor, self.host)
        self._clocks.use(actor, source, "a copy", is_write=False)
        self._clocks.use(actor, target, "a copy", is_write=True)
        with _disable_current_modes(), torch.no_grad():
            if ends[1].is_device:
                target.copy_(source)  # who looks at the device's memory is seen
                return
            values = source.detach().clone()
        self._late[stream].append(partial(target.copy_, values))
        self._num_copies[stream] += 1

    def _arrive(self, stream: Stream, num_copies: int | None = None) -> None:
        """Has the copies arrive that are among the first so many that the stream was given; None: all."""
        late = self._late[stream]
        keep = 0 if num_copies is None else max(0, self._num_copies[stream] - num_copies)
        with _disable_current_modes(), torch.no_grad():
            while len(late) > keep:
                late.pop(0)()

    def uses(self, tensor: torch.Tensor, stream: Stream) -> None:
        self._clocks.buffer(tensor, self._at_work).told.add(self._actors[stream])

    @property
    def _at_work(self) -> Actor:
        """The actor of the current stream."""
        return self._actors[self._current]

    # Memory that others read

    def vector(self, count: int, dtype: torch.dtype) -> SharedVector:
        with _disable_current_modes():
            made = SharedVector(count, dtype)
        self._clocks.buffer(made.tensor, OTHERS).is_device = True
        return made

    def opened(self, address: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
        with _disable_current_modes():
            found = opened(address, dtype)
        if found is not None:
            self._clocks.buffer(found, OTHERS).is_device = True
        return found

    # Operations

    def launch(self, name: str, reads: Sequence[torch.Tensor], writes: Sequence[torch.Tensor]) -> Actor:
        """Notes that an operation is given to the current stream, or done by the host; returns by whom it is done.

        Whose memory it is that was made from nothing, its first use tells.
        """
        buffers = [self._clocks.buffer(tensor, self._at_work) for tensor in (*reads, *writes)]
        kinds = {buffer.is_device for buffer in buffers}
        if {True, False} <= kinds:
            raise Hazard(f"{name} on {self._current} has the host wait for a copy: use Device.copied_in or copied_out")
        is_device = True if True in kinds else False if False in kinds else None
        actor: Actor = self.host if is_device is False else self._at_work
        for buffer in buffers:
            if is_device is not None and buffer.is_device is None:
                buffer.is_device = is_device
                if not is_device:
                    buffer.uses, buffer.owner = [], self.host
        if actor != self.host:
            self._arrive(self._current)
        self._clocks.begin(actor, self.host)
        for tensor in reads:
            self._clocks.use(actor, tensor, name, is_write=False)
        for tensor in writes:
            self._clocks.use(actor, tensor, name, is_write=True)
        return actor

    def made(self, name: str, results: Sequence[torch.Tensor], actor: Actor, *, is_device: bool | None) -> None:
        """Notes what an operation has made."""
        for tensor in results:
            buffer = self._clocks.buffer(tensor, actor)
            if buffer.is_device is None:
                buffer.is_device = is_device
            if not any(use.actor == actor for use in buffer.uses):
                self._clocks.use(actor, tensor, name, is_write=True)

    def kind(self, tensors: Sequence[torch.Tensor]) -> bool | None:
        """Returns whether these tensors are the device's; None: nobody knows."""
        kinds = {self._clocks.buffer(tensor, self._at_work).is_device for tensor in tensors} - {None}
        return kinds.pop() if kinds else None

    def host_waits(self) -> None:
        """Notes that the host has waited for the current stream, to know a value."""
        self._clocks.after(self.host, self._clocks.now(self._at_work))


class _Watch(TorchDispatchMode):
    """Shows every operation of a thread to the queues, those of autograd's way back too."""

    def __init__(self, queues: StandInQueues) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._queues = queues

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keeps torch from importing its compiler; see `planaria.runtime.measure.allocations`."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        reads: list[torch.Tensor] = []
        writes: list[torch.Tensor] = []
        is_view = False
        for number, argument in enumerate(func._schema.arguments):
            value = args[number] if number < len(args) else given.get(argument.name)
            tensors = list(_tensors(value))
            if argument.alias_info is None:
                reads += tensors
            elif argument.alias_info.is_write:
                writes += tensors
            else:
                is_view = is_view or bool(tensors)  # of a view nothing is read
        if is_view and not reads and not writes:
            return func(*args, **given)
        name = str(func)
        actor = self._queues.launch(name, reads, writes)
        is_device = self._queues.kind([*reads, *writes])
        results = func(*args, **given)
        self._queues.made(name, list(_tensors(results)), actor, is_device=is_device)
        if is_device and not isinstance(results, torch.Tensor | tuple | list) and results is not None:
            self._queues.host_waits()
        return results


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _tensors(each)
