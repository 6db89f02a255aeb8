"""What a run cost, by zone, and what a dollar bought."""

from __future__ import annotations

import msgspec
import pytest

from planaria.job.sections.budget import BudgetSection
from planaria.protocol.messages.records import NodeJoined, NodeLost, Restored, RunEnded, RunStatus
from planaria.ui.dashboard.accounts.costs import Costs
from tests.runtime.run_folder.happenings import JOB, committed

PRICED = msgspec.structs.replace(JOB, budget=BudgetSection(price=2.0, zones={"east": 1.0}))
BATCH, MICROBATCH = JOB.train.global_batch, JOB.train.microbatch


def test_a_job_without_prices_has_no_cost() -> None:
    costs = Costs(JOB)
    costs.note(NodeJoined(node=0, live_nodes=1), 0.0)
    costs.note(committed(1), 1.0)
    assert costs.told(1.0) is None
    assert costs.samples == BATCH


def test_nodes_cost_by_zone_from_joining_until_they_are_lost_or_the_run_ends() -> None:
    costs = Costs(PRICED)
    costs.note(NodeJoined(node=0, live_nodes=1, zone="east"), 1000.0)
    costs.note(NodeJoined(node=1, live_nodes=2), 1000.0)
    costs.note(msgspec.structs.replace(committed(1), cost=0.5, num_dropped=1), 2000.0)
    costs.note(NodeLost(node=1, step=2, cause="", live_nodes=1, detect_ms=None), 2800.0)
    found = costs.told(4600.0)
    assert found is not None
    assert found["zones"] == [["", 2.0, 0.5], ["east", 1.0, 1.0]]
    assert found["samples"] == BATCH - MICROBATCH
    assert (found["samples_per_dollar"], found["steps_per_dollar"]) == (2 * (BATCH - MICROBATCH), 2.0)
    ended = RunEnded(
        status=RunStatus.STOPPED, steps=1, message="", skipped_microbatches=0, duplicated_microbatches=0, cost=2.0
    )
    costs.note(ended, 4600.0)
    found = costs.told(9999.0)
    assert found is not None
    assert found["zones"] == [["", 2.0, 0.5], ["east", 1.0, 1.0]]
    assert found["dollars"] == pytest.approx(sum(price * hours for _, price, hours in found["zones"]))


def test_of_prices_that_were_asked_for_the_mean_is_told() -> None:
    budget = BudgetSection(price_command="prices", zones={"east": 1.0})
    costs = Costs(msgspec.structs.replace(JOB, budget=budget))
    costs.note(NodeJoined(node=0, live_nodes=1, zone="east"), 0.0)
    costs.note(NodeJoined(node=1, live_nodes=2), 0.0)
    costs.note(msgspec.structs.replace(committed(1), cost=3.5), 3600.0)
    found = costs.told(3600.0)
    assert found is not None
    assert found["zones"] == [["", 2.5, 1.0], ["east", 1.0, 1.0]]


def test_steps_that_are_undone_bought_nothing() -> None:
    costs = Costs(PRICED)
    costs.note(msgspec.structs.replace(committed(3), cost=1.0), 0.0)
    costs.note(Restored(from_step=3, to_step=1, reason=""), 0.0)
    found = costs.told(0.0)
    assert found is not None
    assert (found["steps"], found["samples"], found["dollars"]) == (1, BATCH, 1.0)
