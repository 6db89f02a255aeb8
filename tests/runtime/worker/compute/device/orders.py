"""Finds every place of the worker where one stream, or the host, waits for another; and leaves one of them out.

Workers of one process are held to each other's memory too: what one reads in place has to be ordered with what its
owner does there, by messages and events.
"""

from __future__ import annotations

import ast
import itertools
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import planaria.runtime.worker as worker
from planaria.runtime.worker.compute.device import streams
from planaria.runtime.worker.compute.device.hazards import Actor, Clocks, Use
from planaria.runtime.worker.compute.device.queues import Stream
from planaria.runtime.worker.compute.device.stand_in import OTHERS, StandInEvent, StandInQueues
from planaria.runtime.worker.compute.device.streams import StreamDevice
from planaria.runtime.worker.compute.shared_memory import SharedVector
from tests.runtime.worker.cluster import Worker, _building

ROOM = Path(worker.__file__).parent
STREAMS = Path(streams.__file__)
CALLS = ("record", "wait", "synchronize", "uses")


@dataclass(frozen=True, slots=True, order=True)
class Site:
    """One call in the source that orders something.

    Attributes:
        file: of it, and `line`.
        call: what is called.
        stream: of `after`, which takes several: that one.
    """

    file: str
    line: int
    call: str
    stream: str = ""

    def __str__(self) -> str:
        return f"{Path(self.file).stem}:{self.line}:{self.call}{':' * bool(self.stream)}{self.stream}"


def sites() -> list[Site]:
    """Returns all such calls."""
    found = []
    for path in sorted(ROOM.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            call = node.func.attr
            if path == STREAMS and call in CALLS and ast.unparse(node.func.value).endswith("queues"):
                found.append(Site(str(path), node.func.end_lineno or 0, call))
            elif call == "after" and ast.unparse(node.func.value).endswith("device"):
                given = [argument.attr for argument in node.args if isinstance(argument, ast.Attribute)]
                found += [Site(str(path), node.func.end_lineno or 0, call, stream) for stream in given]
    return sorted(found)


class CommonClocks(Clocks):
    """Clocks of all devices of a cluster. What is read of another's memory under a plan that is no more is void, so it
    need not be ordered."""

    def __init__(self) -> None:
        super().__init__()
        self._name_of: dict[Actor, str] = {}
        self._workers = weakref.WeakValueDictionary[str, Worker]()
        """By the names of their streams. Memory that is watched keeps these clocks, so they keep no worker."""
        self._plan_of: dict[Use, int] = {}

    def queues_of(self, worker: Worker | None, serial: int) -> str:
        """Returns a name for the streams of a worker."""
        name = f" of {serial}"
        self._name_of |= {f"{stream}{name}": name for stream in Stream}
        if worker is not None:
            self._workers[name] = worker
        return name

    def _generation(self, actor: Actor) -> int:
        worker = self._workers.get(self._name_of.get(actor, ""))
        return 0 if worker is None or worker.agent is None else worker.agent._machine.generation

    def use(self, actor: Actor, tensor: torch.Tensor, what: str, *, is_write: bool) -> None:
        name, buffer = self._name_of.get(actor), self.buffer(tensor, actor)
        plan = self._generation(actor)

        def counts(use: Use) -> bool:
            """What workers have in common beside memory that they share is the test's: a model, say."""
            is_shared = buffer.owner == OTHERS and self._plan_of.get(use, plan) == plan
            return is_shared or self._name_of.get(use.actor) == name

        buffer.uses = list(filter(counts, buffer.uses))
        super().use(actor, tensor, what, is_write=is_write)
        self._plan_of |= dict.fromkeys(buffer.uses[-1:], plan)


class Orders:
    """Notes which of the sites are passed; one may be left out.

    Attributes:
        passed: sites that were passed.
    """

    def __init__(self, without: Site | None = None) -> None:
        self.passed: set[Site] = set()
        self._without = without

    def _leaves_out(self, call: str, stream: str = "") -> bool:
        frame = sys._getframe(2)
        while frame.f_code.co_filename == __file__:
            assert frame.f_back is not None
            frame = frame.f_back
        site = Site(frame.f_code.co_filename, frame.f_lineno, call, stream)
        self.passed.add(site)
        return site == self._without

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Is at work in all workers inside; no time passes on their devices."""
        clocks, serials = CommonClocks(), itertools.count()
        vectors = weakref.WeakValueDictionary[int, SharedVector]()
        begin, vector = StandInQueues.__init__, StandInQueues.vector
        record, wait = StandInQueues.record, StandInQueues.wait
        synchronize, uses, after = StandInQueues.synchronize, StandInQueues.uses, StreamDevice.after

        def patched_begin(queues: StandInQueues) -> None:
            begin(queues, clocks, clocks.queues_of(_building[-1] if _building else None, next(serials)))

        def patched_vector(queues: StandInQueues, count: int, dtype: torch.dtype) -> SharedVector:
            made = vector(queues, count, dtype)
            vectors[made.serial] = made
            return made

        def patched_opened(queues: StandInQueues, address: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
            owner = vectors.get(int(address[2]))
            return None if owner is None else owner.tensor

        def patched_record(queues: StandInQueues, stream: Stream) -> StandInEvent:
            if self._leaves_out("record"):
                return StandInEvent(stream, {}, 0, float("nan"))
            return record(queues, stream)

        def patched_wait(queues: StandInQueues, stream: Stream, event: StandInEvent) -> None:
            if not self._leaves_out("wait"):
                wait(queues, stream, event)

        def patched_synchronize(queues: StandInQueues, event: StandInEvent) -> None:
            if not self._leaves_out("synchronize"):
                synchronize(queues, event)

        def patched_uses(queues: StandInQueues, tensor: Any, stream: Stream) -> None:
            if not self._leaves_out("uses"):
                uses(queues, tensor, stream)

        def patched_after(device: StreamDevice, *given: Stream) -> None:
            after(device, *(stream for stream in given if not self._leaves_out("after", stream.name)))

        with (
            mock.patch.object(StandInQueues, "__init__", patched_begin),
            mock.patch.object(StandInQueues, "vector", patched_vector),
            mock.patch.object(StandInQueues, "opened", patched_opened),
            mock.patch.object(StandInQueues, "clock_s", staticmethod(lambda: 0.0)),
            mock.patch.object(StandInQueues, "record", patched_record),
            mock.patch.object(StandInQueues, "wait", patched_wait),
            mock.patch.object(StandInQueues, "synchronize", patched_synchronize),
            mock.patch.object(StandInQueues, "uses", patched_uses),
            mock.patch.object(StreamDevice, "after", patched_after),
        ):
            yield
