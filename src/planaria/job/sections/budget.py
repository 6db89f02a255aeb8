"""[budget]: what nodes cost, and how much a run may."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from planaria.job.errors import UserError
from planaria.job.sections.section import Section
from planaria.job.values import at_least, positive, text


class BudgetSection(Section, frozen=True):
    """[budget]

    Attributes:
        price: dollars for a node and an hour; 0: nothing is counted.
        zones: dollars for a node and an hour of a zone, where that is another price.
        total: dollars that the run may cost, with all parts of it. Before the step that would go beyond, it saves and
            ends with exit code 3; --resume with more goes on.
        per_hour: dollars an hour that its nodes may cost together: nodes beyond cluster.nodes (its least) that would
            cost more are not started, nor kept when prices rise.
        price_command: command of the shell that prints the dollars for a node and an hour of now; "": `price` holds.
        price_every_s: seconds after which it is asked again.
    """

    price: float = 0.0
    zones: Mapping[str, float] = {}
    total: float | None = None
    per_hour: float | None = None
    price_command: str = ""
    price_every_s: float = 300.0

    @property
    def is_counted(self) -> bool:
        """Whether there are prices at all."""
        return bool(self.price or self.zones or self.price_command)

    def hourly(self, in_zones: Counter[str]) -> float:
        """Returns the dollars an hour of so many nodes in each zone; "" where a node's is not known."""
        return sum(number * self.zones.get(zone, self.price) for zone, number in in_zones.items())


def check_budget(budget: BudgetSection) -> None:
    """Refuses a [budget] that cannot be. Raises UserError."""
    at_least("budget.price", budget.price, 0)
    positive("budget.price_every_s", budget.price_every_s)
    if budget.price_command:
        text("budget.price_command", budget.price_command)
    for zone, price in budget.zones.items():
        at_least(f"budget.zones.{zone}", price, 0)
    for name, limit in (("total", budget.total), ("per_hour", budget.per_hour)):
        if limit is None:
            continue
        positive(f"budget.{name}", limit)
        if not budget.is_counted:
            raise UserError(
                f"budget.{name} = {limit:g} needs budget.price, in dollars for a node and an hour, or "
                "budget.price_command, which prints them."
            )
