"""Replan trigger: when a plan that was weighed is weighed again though no node came or went.

What it was chosen for was the time until the next loss. Where no loss comes, that time is soon thought to be longer,
and another plan may be worth its price by then. Pure.
"""

from __future__ import annotations

LONGER = 2.0
"""How many times longer than when the plan was chosen the expected time to the next loss must be."""


class SecondLook:
    """Decides, for one run, when the plan in force is weighed again.

    Attributes:
        chosen_for_s: for how far a next loss the plan in force was chosen; None: it was not weighed.
    """

    def __init__(self) -> None:
        self.chosen_for_s: float | None = None

    def chosen(self, time_to_failure_s: float) -> None:
        """Records that a plan was chosen among several, with the next loss expected in so many seconds."""
        self.chosen_for_s = time_to_failure_s

    def is_due(self, time_to_failure_s: float) -> bool:
        """Returns, once, whether the plan is to be weighed again; then not until the time has doubled once more."""
        if self.chosen_for_s is None or time_to_failure_s < LONGER * self.chosen_for_s:
            return False
        self.chosen_for_s = time_to_failure_s
        return True

    def forget(self) -> None:
        """Records that the plan in force was not weighed."""
        self.chosen_for_s = None
