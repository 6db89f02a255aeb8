"""A second look: when a plan that was weighed is weighed again though nobody came and nobody went.

What it was chosen for was the time until the next loss. Where no loss comes, that time is soon thought to be longer,
and another plan may be worth its price by then. Pure.
"""

from __future__ import annotations

LONGER = 2.0
"""By how much the time to the next loss must be thought longer than when the plan in force was chosen."""


class SecondLook:
    """Of one run."""

    def __init__(self) -> None:
        self._chosen_for_s: float | None = None

    def chosen(self, time_to_failure_s: float) -> None:
        """A plan was, of several, with the next loss so far away."""
        self._chosen_for_s = time_to_failure_s

    def is_due(self, time_to_failure_s: float) -> bool:
        """Whether the plan is to be weighed again; once it was, not until the time has grown as much once more."""
        if self._chosen_for_s is None or time_to_failure_s < LONGER * self._chosen_for_s:
            return False
        self._chosen_for_s = time_to_failure_s
        return True

    def forget(self) -> None:
        """The plan in force was not weighed."""
        self._chosen_for_s = None
