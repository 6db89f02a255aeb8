from __future__ import annotations

from collections import Counter

import pytest

from planaria.job.sections.budget import BudgetSection
from planaria.protocol.run.spending import Spending


def test_nodes_cost_from_when_they_come_until_they_go_at_their_zones_price() -> None:
    spending = Spending(BudgetSection(price=3.6, zones={"b": 7.2}), before=1.0)
    spending.count(Counter(["a"]), 100.0)
    spending.count(Counter(["a", "b"]), 1100.0)
    assert spending.dollars == pytest.approx(2.0)
    spending.count(Counter(["b"]), 2100.0)
    assert (spending.dollars, spending.hourly) == (pytest.approx(5.0), 7.2)


def test_the_next_coordinator_goes_on_from_what_was_counted_and_counts_the_time_between() -> None:
    budget = BudgetSection(price=3.6)
    spending, later = Spending(budget, before=0.0), Spending(budget, before=0.0)
    spending.count(Counter(["", ""]), 0.0)
    spending.count(Counter(["", ""]), 500.0)
    later.recall(spending.seen)
    later.count(Counter([""]), 1000.0)
    assert later.dollars == pytest.approx(2.0)


def test_a_step_that_would_go_beyond_the_budget_is_not_begun() -> None:
    spending = Spending(BudgetSection(price=3600.0, total=10.0, per_hour=7000.0), before=0.0)
    spending.count(Counter([""]), 0.0)
    spending.count(Counter([""]), 7.0)
    assert spending.over(step_s=3.0) is None
    assert spending.over(step_s=3.5) == "the budget is spent: 7.00 of budget.total = 10 dollars. Raise it to go on"
    refusal = "the nodes would cost 7200.00 dollars an hour, over budget.per_hour = 7000"
    assert (spending.over_hourly(Counter([""])), spending.over_hourly(Counter(["", ""]))) == (None, refusal)


def test_without_prices_nothing_is_counted() -> None:
    spending = Spending(BudgetSection(), before=0.0)
    spending.count(Counter([""]), 0.0)
    spending.count(Counter([""]), 1e6)
    assert (spending.dollars, spending.over(1e6), spending.seen.since) == (0.0, None, None)


def test_another_price_counts_from_then_on_and_is_known_to_the_next_coordinator() -> None:
    budget = BudgetSection(price=3.6, price_command="price")
    spending, later = Spending(budget, before=0.0), Spending(budget, before=0.0)
    spending.count(Counter([""]), 0.0)
    spending.count(Counter([""]), 1000.0)
    spending.change_price(7.2)
    spending.count(Counter([""]), 1000.0)
    spending.count(Counter([""]), 2000.0)
    assert spending.dollars == pytest.approx(3.0)
    later.recall(spending.seen)
    assert (later.price, later.hourly) == (7.2, 7.2)
