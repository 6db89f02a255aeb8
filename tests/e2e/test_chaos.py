"""What `make chaos` draws, and what of it counts as a fault; a minute of it is a part of `make proof`."""

from __future__ import annotations

import random

from scripts.chaos import ORDERED, Blow, Told, drawn_job, ordered_faults, switches_of

from planaria.job.registry import PolicyName
from planaria.plan.plan import Redundancy


def test_what_counts_as_a_fault() -> None:
    told = Told(struck=2)
    for blow in Blow:
        told.blows[blow.value] += 1
    assert told.faults == 2 + len(Blow) - 3 + 1, "not a drain, not a join, not a switch, and a burst is two"
    whole = Told()
    whole.add(told)
    whole.add(told)
    assert whole.faults == 2 * told.faults


def test_every_kind_is_ordered_sometimes() -> None:
    faults = [fault for seed in range(40) for fault in ordered_faults(seed, 8, 3, 9)]
    assert {fault.kind.value for fault in faults} == set(ORDERED)
    assert all(3 <= fault.step <= 9 for fault in faults)
    assert len({fault.node for fault in ordered_faults(1, 8, 3, 9)}) == 4


def test_every_policy_mode_and_zone_is_drawn_sometimes() -> None:
    jobs = [drawn_job(random.Random(seed)) for seed in range(80)]
    assert {job.resilience.policy for job in jobs} == set(PolicyName)
    assert {job.resilience.redundancy for job in jobs} == set(Redundancy)
    assert {len(job.cluster.zones) for job in jobs} == {0, 2, 3}
    for job in jobs:
        assert (PolicyName.DROP in switches_of(job)) == job.resilience.may_drop
