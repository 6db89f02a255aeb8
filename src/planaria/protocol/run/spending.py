"""The cost of a run: counted from step to step, and held to the budget."""

from __future__ import annotations

import math
from collections import Counter

import msgspec

from planaria.job.sections.budget import BudgetSection
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
        return self._budget.is_counted

    @property
    def price(self) -> float:
        """Dollars for a node and an hour, where its zone has no other price."""
        return self._budget.price

    def change_price(self, price: float) -> None:
        """Sets the dollars for a node and an hour from now on; what was spent so far is to be counted before."""
        self._budget = msgspec.structs.replace(self._budget, price=price)

    def hourly_of(self, in_zones: Counter[str]) -> float:
        """Returns the dollars an hour of so many nodes in each zone; each counts as one dollar where there are no
        prices."""
        return self._budget.hourly(in_zones) if self.is_counted else float(in_zones.total())

    def count(self, in_zones: Counter[str], now: float) -> None:
        """Counts the time until now at the price of the nodes that were there, and goes on with those that are: called
        where others are there, and at each step's end.

        Args:
            in_zones: how many live nodes there are in each zone; "" where it is not known.
            now: monotonic seconds.
        """
        if not self.is_counted:
            return
        if self._since is not None:
            self.dollars += self.hourly * max(0.0, now - self._since) / HOUR_S
        self._since, self.hourly = now, self._budget.hourly(in_zones)

    def over(self, step_s: float) -> str | None:
        """Returns why a step of so many seconds is not begun; None where the budget is enough for it."""
        total = self._budget.total
        if total is None or not self.is_counted or self.dollars + self.hourly * step_s / HOUR_S <= total:
            return None
        return f"the budget is spent: {self.dollars:.2f} of budget.total = {total:g} dollars. Raise it to go on"

    def over_hourly(self, in_zones: Counter[str]) -> str | None:
        """Returns why so many nodes in each zone are too many; None: they are not."""
        limit, hourly = self._budget.per_hour, self._budget.hourly(in_zones)
        if limit is None or hourly <= limit:
            return None
        return f"the nodes would cost {hourly:.2f} dollars an hour, over budget.per_hour = {limit:g}"

    def affordable(self, in_zones: Counter[str]) -> float:
        """Returns how many nodes `per_hour` allows for: those in these zones, and others at the usual price."""
        if self._budget.per_hour is None or not self._budget.price:
            return math.inf
        left = self._budget.per_hour - self._budget.hourly(in_zones)
        return in_zones.total() + math.floor(left / self._budget.price)

    @property
    def seen(self) -> Spent:
        """Returns what the next coordinator of the run goes on from."""
        if not self.is_counted:
            return Spent()
        price = self._budget.price if self._budget.price_command else None
        return Spent(dollars=self.dollars, hourly=self.hourly, since=self._since, price=price)

    def recall(self, spent: Spent) -> None:
        """Goes on from what an earlier coordinator counted; nodes cost while there was none."""
        if spent.price is not None:
            self.change_price(spent.price)
        if spent.since is not None:
            self.dollars, self.hourly, self._since = spent.dollars, spent.hourly, spent.since
