"""Starts the process that reads a stream, and again when it is gone before its time."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import threading
from signal import Signals
from typing import Final

import msgspec

from planaria.data.reading.sources import DataError
from planaria.data.streams.blocks import Blocks
from planaria.job.settings import Job

log = logging.getLogger(__name__)

_STARTS: Final = 4
LOG = "reader.log"
"""Name of the file with what the process prints, in the folder of its blocks."""


class ReaderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader is told when it starts.

    Attributes:
        job: whose stream it reads.
        folder: of its blocks.
        sys_path: where modules are looked for.
    """

    job: Job
    folder: str
    sys_path: list[str]


class ReaderProcess:
    """The reader of a stream, from `start` to `close`.

    Args:
        job: whose stream is read.
        blocks: where it goes.
    """

    def __init__(self, job: Job, blocks: Blocks) -> None:
        self._blocks = blocks
        settings = ReaderSettings(job=job, folder=str(blocks.folder.absolute()), sys_path=sys.path)
        self._settings = msgspec.json.encode(settings) + b"\n"
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        self._lock = threading.Lock()
        self._watch = threading.Thread(target=self._start_again, name="stream reader", daemon=True)

    @property
    def pid(self) -> int:
        """Number of the process that reads now."""
        assert self._process is not None, "not started"
        return self._process.pid

    def start(self, *, stands_by: bool = False) -> None:
        """Starts it.

        Args:
            stands_by: another reader reads the stream now, perhaps on another host; this one waits until it is gone.
        """
        if not stands_by:
            self._blocks.clear()
        self._spawn()
        self._watch.start()

    def close(self) -> None:
        """Ends the process; blocks that it wrote stay."""
        with self._lock:
            self._is_closed = True
            process = self._process
        if process is not None:
            process.kill()
            self._watch.join()

    def _spawn(self) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._is_closed:
                return None
            with (self._blocks.folder / LOG).open("ab") as output:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "planaria.data.streams.reader"],
                    stdin=subprocess.PIPE, stdout=output, stderr=output,
                    start_new_session=True,  # an interrupt of the terminal is for the run, which ends it
                )  # fmt: skip
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it is gone already
                self._process.stdin.write(self._settings)
                self._process.stdin.flush()
            return self._process

    def _start_again(self) -> None:
        """Waits for the process's end: unless it was meant to end, another one goes on with its blocks."""
        process = self._process
        for _ in range(_STARTS - 1):
            if process is None or self._ended(process) == 0 or self._is_closed:
                return
            log.warning("the process that reads the stream is gone; it is started again")
            process = self._spawn()
        if process is None or (status := self._ended(process)) == 0 or self._is_closed:
            return
        how = f"status {status}" if status > 0 else Signals(-status).name
        self._blocks.fail(
            DataError(
                f"{self._blocks.about.named}: the process that reads it ended {_STARTS} times ({how}); see "
                f"{self._blocks.folder / LOG}. Mend its cause, and go on by --resume."
            )
        )

    @staticmethod
    def _ended(process: subprocess.Popen[bytes]) -> int:
        status = process.wait()
        assert process.stdin is not None
        process.stdin.close()
        return status
