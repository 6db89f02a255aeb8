"""The cost of a run: counted from step to step, and held to the budget."""

from __future__ import annotations

from collections.abc import Iterable

from planaria.job.settings import BudgetSection
from planaria.protocol.messages.run_measurements import Spent

HOUR_S = 3600.0


class Spending:
    """The cost of a run so far. Nodes cost from when they join until they are lost or released.

    Attributes:
        dollars: that the run has cost, with its earlier parts.
        hourly: dollars an hour of the nodes that are there.
    """

    def __init__(self, budget: BudgetSection, before: float) -> None:
        self._budget = budget
        self._since: float | None = None
        self.dollars = before
        self.hourly = 0.0

    @property
    def is_counted(self) -> bool:
        return bool(self._budget.price or self._budget.zones)

    def count(self, zones: Iterable[str], now: float) -> None:
        """Counts the time until now at the price of the nodes that were there, and goes on with those that are.

        Args:
            zones: of each live node; "" where it is not known.
            now: monotonic seconds.
        """
        if not self.is_counted:
            return
        if self._since is not None:
            self.dollars += self.hourly * max(0.0, now - self._since) / HOUR_S
        self._since, self.hourly = now, self._budget.hourly(zones)

    def over(self, step_s: float) -> str | None:
        """Returns why a step of so many seconds is not begun; None where the budget is enough for it."""
        total = self._budget.total
        if total is None or not self.is_counted or self.dollars + self.hourly * step_s / HOUR_S <= total:
            return None
        return f"the budget is spent: {self.dollars:.2f} of budget.total = {total:g} dollars. Raise it to go on"

    def over_hourly(self, count: int) -> str | None:
        """Returns why so many nodes more, at the usual price, are too many; None: they are not."""
        limit, hourly = self._budget.per_hour, self.hourly + count * self._budget.price
        if limit is None or hourly <= limit:
            return None
        return f"the nodes would cost {hourly:.2f} dollars an hour, over budget.per_hour = {limit:g}"

    @property
    def seen(self) -> Spent:
        """Returns what the next coordinator of the run goes on from."""
        return Spent(dollars=self.dollars, hourly=self.hourly, since=self._since) if self.is_counted else Spent()

    def recall(self, spent: Spent) -> None:
        """Goes on from what an earlier coordinator counted; nodes cost while there was none."""
        if spent.since is not None:
            self.dollars, self.hourly, self._since = spent.dollars, spent.hourly, spent.since
