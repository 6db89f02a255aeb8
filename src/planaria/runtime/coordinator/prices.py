"""What a node costs by now: budget.price_command, asked again and again in a thread of its own. It may fail."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable

from planaria.job.sections.budget import BudgetSection
from planaria.protocol.messages.events import PriceChanged
from planaria.runtime.thresholds import COMMAND_WITHIN_S


class Prices:
    """The prices of a run. Without a command there are no answers.

    Args:
        budget: the command, and how often it is asked.
        tell: called in the thread when there is something to `take`.
    """

    def __init__(self, budget: BudgetSection, tell: Callable[[], None]) -> None:
        self._command = budget.price_command
        self._every_s = budget.price_every_s
        self._tell = tell
        self._answers: deque[PriceChanged | str] = deque()
        self._is_over = threading.Event()

    def start(self) -> None:
        if self._command:
            threading.Thread(target=self._work, name="prices", daemon=True).start()

    def close(self) -> None:
        """Has nothing asked any more. Waits for no command."""
        self._is_over.set()

    def take(self) -> PriceChanged | str | None:
        """Returns the next price, or a warning that there was none; None: nothing is new."""
        return self._answers.popleft() if self._answers else None

    def _work(self) -> None:
        fails = False
        while not self._is_over.is_set():
            try:
                self._answers.append(PriceChanged(asked(self._command)))
                fails = False
            except ValueError as error:
                if not fails:  # once, until it works again
                    self._answers.append(f"budget.price_command {error}; the last known price holds.")
                fails = True
            if self._answers and not self._is_over.is_set():
                self._tell()
            self._is_over.wait(self._every_s)


def asked(command: str) -> float:
    """Returns the dollars for a node and an hour that a command prints. Raises ValueError: it says none, and why."""
    with subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace",
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            printed, _ = process.communicate(timeout=COMMAND_WITHIN_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise ValueError(f"was not done within {COMMAND_WITHIN_S:.0f} s") from None
    if process.returncode:
        raise ValueError(f"ended with exit code {process.returncode}")
    try:
        price = float(printed)
    except ValueError:
        price = math.nan
    if not (math.isfinite(price) and price >= 0):
        raise ValueError(f"printed {printed.strip()[:40]!r}, which is no price")
    return price
