"""What workers hold whose stages spread the optimizer's state, counted tensor by tensor."""

from __future__ import annotations

import msgspec
import pytest

from planaria.estimate.memory import memory_use
from planaria.job.sections.cluster import OptimizerState
from planaria.plan.plan import Plan
from planaria.runtime.worker.compute.replica import Replica
from tests.runtime.worker.cluster import Kill, Weather
from tests.runtime.worker.schedules import Schedule, job_of
from tests.runtime.worker.test_cluster import Laboratory

DEVICES = 3


def optimizer_bytes(replica: Replica) -> int:
    """Bytes of the optimizer's state, padding aside."""
    count = sum(slot.count for slot in replica.layout.slots)
    return sum(4 * count for _ in replica.states)


@pytest.mark.parametrize(
    "kills", [(), (Kill(node=1, at="backward", step=2, delay_s=1e-6, device=1),)], ids=["none", "a device"]
)
def test_devices_hold_the_optimizers_state_that_the_plan_has_them_keep(
    kills: tuple[Kill, ...], laboratory: Laboratory
) -> None:
    job = job_of(nodes=4, depth=4, devices=DEVICES, microbatches=8, smallest=2, source=str(laboratory.source))
    cluster_section = msgspec.structs.replace(
        job.cluster, devices_per_stage=DEVICES, optimizer_state=OptimizerState.SPREAD
    )
    job = msgspec.structs.replace(job, cluster=cluster_section)
    cluster = laboratory.cluster(Schedule(seed=1, job=job, kills=kills, weather=Weather(), stop_at_s=None))
    outcome = cluster.run()
    assert outcome.weights == laboratory.reference(job).weights
    plan: Plan = cluster.machine.plan
    assert plan.spreads_optimizer
    for worker, kept in plan.kept_of.items():
        agent = cluster.workers[worker].agent
        assert agent is not None
        replicas = agent._holdings.replicas
        assert set(replicas) == set(plan.groups_of[worker])
        assert {group for group, replica in replicas.items() if replica.states} == set(kept)
        held = sum(optimizer_bytes(replica) for replica in replicas.values())
        assert held == memory_use(plan, cluster.profile, worker).optimizer
        assert held < 2 * sum(plan.groups[group].size_bytes for group in replicas)
