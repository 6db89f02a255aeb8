"""A thread that completes checkpoints, or removes those that were given up, so that a busy disk delays no votes."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable

from planaria.checkpoint.manifest import discard
from planaria.protocol.messages.events import Discard, ManifestFailed, ManifestWritten, WriteManifest


class ManifestWriter:
    """Writes and removes manifests, one order after the other.

    Args:
        write: makes a checkpoint whole. An OSError of it is an answer.
        tell: called in the thread when there is an answer to `take`.
    """

    def __init__(self, write: Callable[[WriteManifest], None], tell: Callable[[], None]) -> None:
        self._write = write
        self._tell = tell
        self._orders: queue.SimpleQueue[WriteManifest | Discard] = queue.SimpleQueue()
        self._answers: deque[ManifestWritten | ManifestFailed | BaseException] = deque()
        self._thread: threading.Thread | None = None

    def order(self, command: WriteManifest | Discard) -> None:
        if self._thread is None:  # many runs save once, at their end
            self._thread = threading.Thread(target=self._work, name="manifests", daemon=True)
            self._thread.start()
        self._orders.put(command)

    def take(self) -> ManifestWritten | ManifestFailed | None:
        """Returns the next answer, if there is one. Raises any error that is not an OSError."""
        answer = self._answers.popleft() if self._answers else None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _work(self) -> None:
        while True:
            command = self._orders.get()
            if isinstance(command, Discard):
                discard(command.folder)
                continue
            began = time.monotonic()
            try:
                self._write(command)
            except OSError as error:
                text = f"{command.folder}: {error.strerror or error}"
                self._answers.append(ManifestFailed(command.step, command.folder, text))
            except BaseException as error:
                self._answers.append(error)
            else:
                self._answers.append(ManifestWritten(command.step, command.folder, time.monotonic() - began))
            self._tell()
