"""Streams of a GPU. Nothing but torch's names for what `queues` asks for; it has not run on a GPU."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from planaria.runtime.worker.compute.device.cuda_memory import CudaVector, opened
from planaria.runtime.worker.compute.device.queues import Stream


class CudaQueues:
    """The streams of one GPU; computation is on the one that torch uses when it is told of none.

    Args:
        place: the GPU.
    """

    def __init__(self, place: torch.device) -> None:
        self._place = place
        own = torch.cuda.default_stream(place)
        self._streams = {
            stream: own if stream is Stream.COMPUTE else torch.cuda.Stream(device=place)  # type: ignore[no-untyped-call]
            for stream in Stream
        }

    def in_use(self) -> AbstractContextManager[object]:
        return torch.cuda.device(self._place)

    def on(self, stream: Stream) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._streams[stream])

    def record(self, stream: Stream) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._streams[stream])
        return event

    def wait(self, stream: Stream, event: torch.cuda.Event) -> None:
        self._streams[stream].wait_event(event)

    def synchronize(self, event: torch.cuda.Event) -> None:
        event.synchronize()

    def is_over(self, event: torch.cuda.Event) -> bool:
        return bool(event.query())  # type: ignore[no-untyped-call]

    def seconds_between(self, first: torch.cuda.Event, last: torch.cuda.Event) -> float:
        return float(first.elapsed_time(last)) * 1e-3

    def pinned(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        """Returns memory that torch's allocator gives to nobody else before the copies from and to it are done."""
        return torch.empty(shape, dtype=dtype, pin_memory=True)

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        with torch.cuda.stream(self._streams[stream]):
            target.copy_(source, non_blocking=True)

    def vector(self, count: int, dtype: torch.dtype) -> CudaVector:
        return CudaVector(count, dtype, self._place)

    def opened(self, address: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
        return opened(address, dtype, self._place)

    def uses(self, tensor: torch.Tensor, stream: Stream) -> None:
        tensor.record_stream(self._streams[stream])
