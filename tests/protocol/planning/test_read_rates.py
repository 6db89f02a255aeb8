"""What restores tell of the storage."""

from __future__ import annotations

import pytest

from planaria.estimate.restore_time import Storage, restore_time
from planaria.plan.plan import NodeId
from planaria.plan.settings import PlannerSettings
from planaria.policy.morph import MorphPolicy
from planaria.policy.planner import Planner
from planaria.protocol.planning.transition_times import ReadRates
from tests.plan.profiles import uniform_profile

POLICY = MorphPolicy.of(
    Planner(
        uniform_profile(4),
        PlannerSettings(num_microbatches=4, fault_tolerance=1, num_nodes=4, devices_per_node=1, min_nodes=2),
    )
)
PLAN = POLICY.initial([NodeId(node) for node in range(4)], 1).plan


def test_the_median_of_what_was_measured_is_expected_of_the_next() -> None:
    loading = ReadRates(Storage(node_bytes_per_s=7.0, latency_s=3.0))
    assert loading.storage.node_bytes_per_s == 7.0
    for seconds in (2.0, 50.0, 4.0):
        loading.begin(PLAN, 100.0)
        loading.settled(100.0 + seconds)
    assert restore_time(PLAN, loading.storage).time_s == pytest.approx(4.0)


def test_a_restore_that_another_plan_overtook_is_no_measure() -> None:
    loading = ReadRates(Storage(node_bytes_per_s=7.0))
    loading.settled(1.0)
    loading.begin(PLAN, 2.0)
    loading.give_up()
    loading.settled(9.0)
    loading.begin(PLAN, 9.0)
    loading.settled(9.0)
    assert loading.storage == Storage(node_bytes_per_s=7.0)
