"""A second look: when a plan that was weighed is weighed again though nobody came and nobody went.

What it was chosen for was the time until the next loss. Where no loss comes, that time is soon thought to be longer,
and another plan may be worth its price by then. Pure.
"""

from __future__ import annotations

LONGER = 2.0
"""By how much the time to the next loss must be thought longer than when the plan in force was chosen."""


class SecondLook:
    """Of one run.

    Attributes:
        chosen_for_s: for how far a next loss the plan in force was chosen; None: it was not weighed.
    """

    def __init__(self) -> None:
        self.chosen_for_s: float | None = None

    def chosen(self, time_to_failure_s: float) -> None:
        """A plan was, of several, with the next loss so far away."""
        self.chosen_for_s = time_to_failure_s

    def is_due(self, time_to_failure_s: float) -> bool:
        """Whether the plan is to be weighed again; once it was, not until the time has grown as much once more."""
        if self.chosen_for_s is None or time_to_failure_s < LONGER * self.chosen_for_s:
            return False
        self.chosen_for_s = time_to_failure_s
        return True

    def forget(self) -> None:
        """The plan in force was not weighed."""
        self.chosen_for_s = None
