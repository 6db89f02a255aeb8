"""The page of `planaria dashboard`, served while the run lasts by a process of its own, which reads the run's folder.

What happens there, or to whoever looks, does not reach the processes that train.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable

from planaria.job.sections.cluster import LOOPBACK
from planaria.protocol.messages.records import Note
from planaria.runtime.observers.thresholds import PAGE_END_S, VIEW_LOOK_S
from planaria.runtime.run_folder.run_folder import RunFolder


class DashboardPage:
    """A run's page, on loopback. Close it, whatever came of it.

    Args:
        folder: of the run.
        port: TCP port of the page; 0: there is none.
        is_hurried: whether the user wants the end at once: viewers do not see the last state then.

    Attributes:
        address: of the page, for a browser; "": it is not served.
    """

    def __init__(self, folder: RunFolder, port: int, is_hurried: Callable[[], bool]) -> None:
        self._folder = folder
        self._port = port
        self._is_hurried = is_hurried
        self._log = folder.logs / "dashboard.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""

    def start(self, token: str) -> Note | None:
        """Starts the page's process, and returns what the user should hear; it imports while the caller goes on.

        Args:
            token: that the page wants to see before it sends commands to the run.
        """
        if not self._port:
            return None
        try:
            with socket.create_server((LOOPBACK, self._port)) as listener, self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "planaria.ui.cli.main",
                        "serve-page",
                        str(self._folder.path),
                        str(listener.fileno()),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    pass_fds=(listener.fileno(),),
                    start_new_session=True,
                )
            assert self._process.stdin is not None
            self._process.stdin.write(f"{token}\n".encode())
            self._process.stdin.flush()
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            text = f"the page is not served at {LOOPBACK}:{self._port}: {reason}. Training goes on without it"
            return Note(level="warning", text=f"{text}; observe.dashboard_port may name another port")
        self.address = f"http://{LOOPBACK}:{self._port}/"
        return Note(level="info", text=f"page: {self.address} (for commands: the token in {self._folder.contact})")

    def close(self) -> None:
        """Ends the process, once it has shown the last state to those who look."""
        process = self._process
        if process is None:
            return
        if process.poll() is not None:
            with contextlib.suppress(OSError, ValueError):  # nobody reads it, or it is closed
                print(f"the page ended before the run did; {self._log} may say why", file=sys.stderr)
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()  # its end is what the process waits for
        deadline = time.monotonic() + PAGE_END_S
        while process.poll() is None and time.monotonic() < deadline and not self._is_hurried():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(VIEW_LOOK_S)
        process.kill()
        process.wait()
