"""The result that a run gives back to its caller."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from signal import Signals

from planaria.protocol.messages.records import Recovery, RunStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """How a run ended.

    Attributes:
        status: completed, stopped, interrupted, exhausted or failed.
        steps: how many steps were committed.
        final_loss: of the last step that was applied, the mean over the global batch; None when there is none.
        weights_sha256: over the final weights in layer and parameter-name order; None when not known.
        recoveries: one for each loss that was survived, in order.
        folder: the run folder.
        message: one sentence for people.
        signal: that interrupted it, SIGPIPE where nobody read its output any more; None: none did.
    """

    status: RunStatus
    steps: int
    final_loss: float | None
    weights_sha256: str | None
    recoveries: tuple[Recovery, ...]
    folder: Path
    message: str
    signal: Signals | None = None
