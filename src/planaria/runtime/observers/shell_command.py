"""Alerts by a command of the user's."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess

from planaria.runtime.observers.alerts import Alert, NotDelivered
from planaria.runtime.thresholds import COMMAND_WITHIN_S


class ShellCommand:
    """Delivers alerts by a command of the shell, with PLANARIA_EVENT, _RUN, _FOLDER and _TEXT in its environment.

    Args:
        command: of the shell.
    """

    name = "observe.command"
    rests_s: tuple[float, ...] = (0.0,)  # what it has done by the time it fails, nobody knows

    def __init__(self, command: str) -> None:
        self._command = command

    def __call__(self, alert: Alert) -> None:
        told = {"EVENT": alert.kind.value, "RUN": alert.run, "FOLDER": str(alert.folder.absolute()), "TEXT": alert.text}
        environment = os.environ | {f"PLANARIA_{name}": value.replace("\0", " ") for name, value in told.items()}
        silent = subprocess.DEVNULL
        with subprocess.Popen(
            ["/bin/sh", "-c", self._command],
            env=environment, stdin=silent, stdout=silent, stderr=silent, start_new_session=True,
        ) as process:  # fmt: skip
            try:
                code = process.wait(COMMAND_WITHIN_S)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise NotDelivered(f"it was not done within {COMMAND_WITHIN_S:.0f} s, and killed") from None
        if code:
            raise NotDelivered(f"it ended with exit code {code}")
