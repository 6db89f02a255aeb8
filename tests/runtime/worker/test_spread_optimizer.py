"""What workers hold whose stages are on several devices, counted tensor by tensor, beside the estimate."""

from __future__ import annotations

import msgspec
import pytest
import torch

from planaria.estimate.memory import memory_use
from planaria.job.sections.cluster import OptimizerState
from planaria.job.sections.train import Numerics
from planaria.plan.costs.byte_counts import NUMERICS, ValueBytes
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.plan import Plan
from planaria.runtime.worker.compute.holdings import Holdings
from tests.runtime.worker.cluster import Kill, Weather
from tests.runtime.worker.schedules import Schedule, job_of
from tests.runtime.worker.test_cluster import Laboratory

DEVICES = 3


def held_bytes(holdings: Holdings, group: int) -> tuple[int, int, int]:
    """Bytes of a group's parameters, gradients (what is counted, and the sum) and optimizer's state, padding aside."""
    replica = holdings.replicas[group]
    count = sum(slot.count for slot in replica.layout.slots)

    def of(tensor: torch.Tensor) -> int:
        assert tensor.numel() in (0, replica.layout.size)
        return count * tensor.element_size() if tensor.numel() else 0

    gradients = of(holdings.accumulators[group].total) + of(replica.gradient)
    return of(replica.parameters), gradients, sum(map(of, replica.states.values()))


@pytest.mark.parametrize("numerics", [Numerics.EXACT, Numerics.FAST])
@pytest.mark.parametrize("optimizer_state", [*OptimizerState])
@pytest.mark.parametrize(
    "kills", [(), (Kill(node=1, at="backward", step=2, delay_s=1e-6, device=1),)], ids=["none", "a device"]
)
def test_devices_hold_what_the_plan_has_them_keep_and_the_estimate_says(
    kills: tuple[Kill, ...], optimizer_state: OptimizerState, numerics: Numerics, laboratory: Laboratory
) -> None:
    job = job_of(
        nodes=4,
        depth=4,
        devices=DEVICES,
        microbatches=8,
        smallest=2,
        numerics=numerics.value,
        source=str(laboratory.source),
    )
    cluster_section = msgspec.structs.replace(job.cluster, devices_per_stage=DEVICES, optimizer_state=optimizer_state)
    job = msgspec.structs.replace(job, cluster=cluster_section)
    cluster = laboratory.cluster(Schedule(seed=1, job=job, kills=kills, weather=Weather(), stop_at_s=None))
    outcome = cluster.run()
    if numerics is Numerics.EXACT:
        assert outcome.weights == laboratory.reference(job).weights
    plan: Plan = cluster.machine.plan
    assert plan.spreads_optimizer == (optimizer_state is OptimizerState.SPREAD)
    profile = with_bytes_of(cluster.profile, NUMERICS[numerics.value])
    for worker, kept in plan.kept_of.items():
        agent = cluster.workers[worker].agent
        assert agent is not None
        holdings = agent._holdings
        groups = plan.groups_of[worker]
        assert set(holdings.replicas) == set(groups)
        assert {group for group in groups if holdings.replicas[group].states} == set(kept)
        assert {group for group in groups if holdings.replicas[group].gradient.numel()} == set(kept)
        held = [sum(column) for column in zip(*(held_bytes(holdings, group) for group in groups), strict=True)]
        use = memory_use(plan, profile, worker)
        assert held == [use.parameters, use.gradients, use.optimizer]


def with_bytes_of(profile: ModelProfile, values: ValueBytes) -> ModelProfile:
    """The profile, with layers whose state has the proportions of these values."""
    layers = tuple(
        msgspec.structs.replace(
            layer,
            parameter_bytes=values.parameter,
            gradient_bytes=values.gradient,
            optimizer_bytes=values.optimizer,
        )
        for layer in profile.layers
    )
    return msgspec.structs.replace(profile, layers=layers)
