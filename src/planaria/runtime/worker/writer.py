"""Writes parts of checkpoints beside training: the main thread copies, a thread of its own writes and tells."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable, Mapping

from planaria.checkpoint.state import GroupState, write_group
from planaria.plan.plan import WorkerId
from planaria.protocol.messages.from_worker import FromWorker, NotSaved, Saved
from planaria.protocol.messages.to_worker import Save


def write(save: Save, worker: WorkerId, states: Mapping[int, GroupState]) -> Saved | NotSaved:
    """Writes the groups that `save` names; a full or broken disk is an answer, not an error, and so is whatever else
    prevents it: training goes on, and the coordinator says why the checkpoint is missing."""
    try:
        groups = tuple(
            write_group(save.folder, group, f"{worker}-{save.serial}", states[group]) for group in save.groups
        )
    except OSError as error:
        return NotSaved.answering(save, f"{save.folder}: {error.strerror or error}")
    except Exception as error:
        traceback.print_exc()
        return NotSaved.answering(save, f"{save.folder}: {type(error).__name__}: {str(error).partition(chr(10))[0]}")
    return Saved(step=save.step, serial=save.serial, groups=groups)


class Writer:
    """Writes in one thread, started with its first order; orders are carried out one after another."""

    def __init__(self, worker: WorkerId, send: Callable[[FromWorker], None]) -> None:
        self._worker = worker
        self._send = send
        self._orders: queue.SimpleQueue[tuple[Save, Mapping[int, GroupState]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def write(self, save: Save, states: Mapping[int, GroupState]) -> None:
        """Orders a write and returns at once. `states` are the writer's own: nobody changes them any more."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="writer", daemon=True)
            self._thread.start()
        self._orders.put((save, states))

    def close(self) -> None:
        """Finishes what was ordered."""
        if self._thread is not None:
            self._orders.put(None)
            self._thread.join()

    def _serve(self) -> None:
        while (order := self._orders.get()) is not None:
            self._send(write(order[0], self._worker, order[1]))
