"""A zone is lost in the middle of a step, and the job goes on without a checkpoint: each layer has replicas left."""

from __future__ import annotations

import pytest

from planaria.job.registry import PolicyName
from planaria.plan.plan import ScheduleKind
from planaria.protocol.messages.records import NodeLost, Restored, RunEnded, RunStatus
from tests.proof import rest_in_proof
from tests.testkit.cluster.cluster import Cluster
from tests.testkit.schedules.faults import Fault, FaultKind
from tests.testkit.schedules.schedule import Schedule
from tests.testkit.schedules.setup import Setup
from tests.testkit.schedules.weather import Weather

NODES = 12


def outage(*, num_zones: int, policy: PolicyName, seed: int, crashes: bool = False) -> Cluster:
    """Every second node dies, in the second step or so."""
    setup = Setup(
        num_layers=4,
        is_tied=True,
        is_large=False,
        num_nodes=NODES,
        devices_per_node=1,
        fault_tolerance=1,
        min_nodes=2,
        num_microbatches=12,
        steps=4,
        checkpoint_every=1,
        order=ScheduleKind.EAGER_ONE_F_ONE_B,
        waits=False,
        policy=policy,
        num_zones=num_zones,
    )
    lost = Fault(kind=FaultKind.KILL, nodes=tuple(range(0, NODES, 2)), at="forward", nth=70 + seed)
    crash = Fault(kind=FaultKind.CRASH, at="NodeGone", for_s=0.02)
    cluster = Cluster(
        Schedule(seed=seed, setup=setup, weather=Weather(), faults=(lost, *((crash,) if crashes else ())))
    )
    cluster.run()
    return cluster


@pytest.mark.parametrize("crashes", rest_in_proof([True, False]))
@pytest.mark.parametrize("policy", [policy for policy in PolicyName if policy is not PolicyName.MORPH])
def test_an_outage_of_a_zone_costs_no_step(policy: PolicyName, crashes: bool) -> None:
    for seed in range(2):
        records = outage(num_zones=2, policy=policy, seed=seed, crashes=crashes).invariants.records
        assert len([record for record in records if isinstance(record, NodeLost)]) == NODES // 2
        assert not [record for record in records if isinstance(record, Restored)]
        (ended,) = [record for record in records if isinstance(record, RunEnded)]
        assert ended.status is RunStatus.COMPLETED


def test_without_zones_it_costs_one() -> None:
    records = [
        record
        for seed in range(4)
        for record in outage(num_zones=0, policy=PolicyName.TEMPLATES, seed=seed).invariants.records
    ]
    assert [record for record in records if isinstance(record, Restored)]


def test_a_coordinator_that_begins_again_knows_the_zones() -> None:
    cluster = outage(num_zones=2, policy=PolicyName.TEMPLATES, seed=1, crashes=True)
    state = cluster.server.machine.state
    assert state.zones == {node: f"zone-{node % 2}" for node in range(NODES) if node % 2}
