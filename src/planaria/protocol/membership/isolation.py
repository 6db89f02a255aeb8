"""Whether it is the judge who is cut off: when nobody at all is heard of, the others are not likely to be gone at once.

To lose everybody is the worst that a judge can do, and it gains nothing: nobody would be left to go on. So it waits.
Pure: time comes as an argument.
"""

from __future__ import annotations

from planaria.protocol.membership.liveness import OVERDUE_S


class Isolation:
    """Of a coordinator from all of its workers.

    Args:
        patience_s: how long it waits; 0: it never does.
        silence_s: after which one worker counts as lost. Half of it without a sign of anybody is suspicious, and so is
            a heartbeat that everybody missed.
    """

    def __init__(self, patience_s: float, silence_s: float) -> None:
        self._patience_s = patience_s
        self._suspicious_s = min(silence_s / 2, OVERDUE_S)
        self._quiet_s: float | None = None

    def holds(self, quiet_s: float) -> bool:
        """Whether nobody may be judged now.

        Args:
            quiet_s: seconds since the last sign of anybody.
        """
        if not self._suspicious_s < quiet_s <= self._patience_s:
            return False
        self._quiet_s = quiet_s
        return True

    def ended(self) -> float:
        """Seconds that it lasted, told once after it is over; 0: it was not.

        A sender tries again after pauses that double, so others may take as long again to be heard.
        """
        lasted, self._quiet_s = self._quiet_s or 0.0, None
        return lasted
