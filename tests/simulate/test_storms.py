"""Several losses within one step, in virtual time: it is finished, or begun anew, whichever is quicker.

Every promise is checked after every event, as in all simulated runs.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

import pytest

from planaria.job.registry import PolicyName
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.plan import ScheduleKind
from planaria.policy.interface import Candidate, FinishRequest, Policy
from planaria.protocol.messages.records import AnyRecord, Note, PlanTaken, StepCommitted
from tests.plan.profiles import uniform_profile
from tests.testkit.cluster.cluster import Cluster
from tests.testkit.schedules.faults import Fault, FaultKind
from tests.testkit.schedules.schedule import Schedule
from tests.testkit.schedules.setup import Setup
from tests.testkit.schedules.weather import Weather

FINISHING = (PolicyName.TEMPLATES, PolicyName.REROUTE, PolicyName.ADAPTIVE, PolicyName.REDUNDANCY)
"""Policies that finish steps, and leave nothing out."""
STRUCK = 5


class Even(Setup, frozen=True, kw_only=True):
    """Even layers."""

    @property
    def profile(self) -> ModelProfile:
        return uniform_profile(8)


class Watched(Cluster):
    """Keeps what was told, and when."""

    def __init__(self, schedule: Schedule) -> None:
        self.told: list[tuple[float, AnyRecord]] = []
        super().__init__(schedule)

    def publish(self, record: AnyRecord, *, again: bool) -> None:
        self.told.append((self.clock.now, record))
        super().publish(record, again=again)

    @property
    def steps_s(self) -> dict[int, float]:
        at = {record.step: now for now, record in self.told if isinstance(record, StepCommitted)}
        return {step: now - at[step - 1] for step, now in at.items() if step - 1 in at}

    @property
    def begun_anew(self) -> int:
        return sum("is begun anew" in r.text and "quicker" in r.text for _, r in self.told if isinstance(r, Note))


def ran(policy: PolicyName, losses: Sequence[tuple[int, float]], nodes: int = 16, smallest: int = 4) -> Watched:
    """A job that loses these nodes so long after step `STRUCK` began."""
    setup = Even(
        num_layers=8, is_tied=True, is_large=False, num_nodes=nodes, devices_per_node=1, fault_tolerance=1,
        min_nodes=smallest, num_microbatches=16, steps=8, checkpoint_every=0, order=ScheduleKind.ONE_F_ONE_B,
        waits=False, policy=policy,
    )  # fmt: skip
    faults = tuple(
        Fault(kind=FaultKind.KILL, nodes=(node,), at="JournalCommit", nth=STRUCK - 1, delay_s=at_s)
        for node, at_s in losses
    )
    weather = Weather(network_s=1e-4, control_s=1e-4, is_as_profiled=True)
    cluster = Watched(Schedule(seed=1, setup=setup, weather=weather, faults=faults))
    cluster.run()
    assert max(cluster.steps_s) == 8
    return cluster


@pytest.mark.parametrize("policy", FINISHING)
def test_losses_across_pipelines_cost_less_than_a_step(policy: PolicyName) -> None:
    """Three of four pipelines are broken at once, and one after the other: what is left of each takes part."""
    at_once = [(1, 0.1), (6, 0.1), (11, 0.1)]
    in_turn = [(1, 0.05), (6, 0.1), (11, 0.15)]
    for losses in (at_once, in_turn):
        seconds = ran(policy, losses).steps_s
        usual = statistics.median(seconds[step] for step in seconds if step != STRUCK)
        assert seconds[STRUCK] < 2.0 * usual


def long(monkeypatch: pytest.MonkeyPatch, steps: Sequence[float | None], whole: float = 1.0) -> None:
    """The rest of the struck step is thought to take so many whole steps, at one loss after the other."""
    original = Policy.finish_step
    coming = list(steps)

    def finish_step(self: Policy, request: FinishRequest) -> Candidate:
        proposal = original(self, request)
        step_s = proposal.step_time_s
        rest = coming.pop(0)
        return dataclasses.replace(proposal, step_time_s=whole * step_s, rest_s=None if rest is None else rest * step_s)

    monkeypatch.setattr(Policy, "finish_step", finish_step)


@pytest.mark.parametrize("policy", FINISHING)
def test_a_step_is_begun_anew_where_the_rest_would_take_much_longer(
    policy: PolicyName, monkeypatch: pytest.MonkeyPatch
) -> None:
    long(monkeypatch, [5.0])
    cluster = ran(policy, [(1, 0.05)])
    assert cluster.begun_anew == 1
    assert all(r.purpose != "finish step" for _, r in cluster.told if isinstance(r, PlanTaken))


@pytest.mark.parametrize("policy", FINISHING)
def test_so_it_is_at_a_later_loss_however_long_the_rest_already_is(
    policy: PolicyName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a step usually takes is what a rest is held against, not what the plan that finishes it should take."""
    long(monkeypatch, [0.5, 5.0], whole=10.0)
    cluster = ran(policy, [(1, 0.05), (6, 0.15)])
    assert cluster.begun_anew == 1
    assert [r.purpose for _, r in cluster.told if isinstance(r, PlanTaken)].count("finish step") == 1


@pytest.mark.parametrize("rest", [0.5, None])
def test_it_is_finished_where_the_rest_is_short_or_is_not_to_be_weighed(
    rest: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    long(monkeypatch, [rest])
    assert not ran(PolicyName.TEMPLATES, [(1, 0.05)]).begun_anew
