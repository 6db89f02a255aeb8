"""A plan that was weighed is weighed again after quiet, at the steps at which the coordinator does so."""

from __future__ import annotations

import msgspec

from planaria.plan.costs.model_profile import LinkCost, Links
from planaria.policy.adaptive.adaptive import AdaptivePolicy
from planaria.policy.planner import Planner
from planaria.policy.templates import TemplatesPolicy
from planaria.protocol.planning.failure_rate import Failures
from planaria.protocol.planning.plan_validity import SecondLook
from planaria.simulate.episode.situation import State
from planaria.simulate.experiment import Experiment
from planaria.simulate.timings import Timings
from planaria.simulate.trace_events import TraceEvents
from planaria.simulate.trace_run import TraceRun
from tests.simulate.test_simulation import experiment, losing, profile

EXPECTED_S = 30.0
LOST_S = 60.0
HOURS = 4.0


def slow_links() -> Experiment:
    """New pipelines cost minutes."""
    link = LinkCost(latency_s=1e-4, bandwidth_bytes_per_s=2e5)
    costs = msgspec.structs.replace(profile(), links=Links(within_node=link, between_nodes=link))
    return experiment(
        profile=costs, mean_time_between_failures_s=EXPECTED_S, checkpoint_every=0, timings=Timings(start_s=0.0)
    )


def followed(*lost_s: float) -> tuple[list[tuple[float, float, State]], TraceRun]:
    """When a run began to train undisturbed, how long its steps took then, and the states."""
    about = slow_links()
    simulation = about.simulation("adaptive", AdaptivePolicy.of(Planner(about.profile, about.settings)))
    run = TraceRun(simulation, TraceEvents.of(losing(*lost_s, hours=HOURS), 0.0))
    run.begin()
    rests = []
    while not run.is_over:
        assert run.state is not None
        rests.append((run.now, simulation.costs(run.state)[0], run.state))
        run.go_on()
    return rests, run


def test_looks_come_at_the_commits_at_which_the_coordinator_looks() -> None:
    """That is, where `SecondLook` says so when it is asked after each step, as it is for real."""
    rests, _ = followed()
    assert len({state for _, _, state in rests}) == 1
    (began, step_s, _), *looks = rests
    failures, look = Failures(EXPECTED_S), SecondLook()
    failures.begin(0.0)
    look.chosen(failures.time_to_next_s(0.0))
    commits = (began + step_s * number for number in range(1, int((HOURS * 3600 - began) / step_s) + 1))
    expected = [at_s for at_s in commits if look.is_due(failures.time_to_next_s(at_s))]
    assert len(expected) > 7
    assert [round(at_s, 3) for at_s, _, _ in looks] == [round(at_s, 3) for at_s in expected]


def test_a_plan_is_left_after_quiet_where_that_pays() -> None:
    """After the loss its work is rerouted, since another one is near; new pipelines follow minutes later."""
    rests, run = followed(LOST_S)
    after = [(at_s, state) for at_s, _, state in rests if at_s > LOST_S]
    assert after[0][1].plan.pipelines != after[1][1].plan.pipelines
    assert after[1][0] > after[0][0] + EXPECTED_S
    result = run.result()
    assert result.losses == 1
    assert result.plans["warm up"] >= 1
    assert sum(result.survived.values()) == 1


def test_policies_that_do_not_weigh_are_not_asked_again() -> None:
    about = slow_links()
    simulation = about.simulation("templates", TemplatesPolicy.of(about.planner))
    run = TraceRun(simulation, TraceEvents.of(losing(hours=HOURS), 0.0))
    run.begin()
    run.go_on()
    assert run.is_over
