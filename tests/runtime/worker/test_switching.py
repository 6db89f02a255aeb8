"""A change of policy on the way, in virtual time: the reference's bits, whatever befalls the job around it."""

from __future__ import annotations

import pytest

from planaria.protocol.messages.records import Note, PlanTaken, PolicySwitched, Recovered, RunStatus, Waiting
from tests.runtime.worker.cluster import Crash, Kill, Outcome, Switch, Visit, Weather
from tests.runtime.worker.schedules import Schedule, job_of, switching
from tests.runtime.worker.test_cluster import Laboratory

SEEDS = range(16)


@pytest.mark.proof
def test_random_schedules_keep_every_promise(laboratory: Laboratory) -> None:
    assert sum(len(outcome.of(PolicySwitched)) for outcome in laboratory.run_all(SEEDS, switching)) >= 8


def grid(
    laboratory: Laboratory,
    switches: tuple[Switch, ...],
    *,
    policy: str = "reroute",
    kills: tuple[Kill, ...] = (Kill(node=1, at="backward", step=2),),
    crashes: tuple[Crash, ...] = (),
    visits: tuple[Visit, ...] = (),
    **changes: object,
) -> Schedule:
    """Three pipelines of two stages, one of which loses a node in step 2; node 2 p + s has stage s of pipeline p."""
    job = job_of(
        nodes=6, depth=2, steps=12, microbatches=9, smallest=2, policy=policy, source=str(laboratory.source),
        **changes,  # type: ignore[arg-type]
    )  # fmt: skip
    return Schedule(
        seed=1, job=job, kills=kills, visits=visits, crashes=crashes, switches=switches, weather=Weather(),
        stop_at_s=None,
    )  # fmt: skip


def told(outcome: Outcome) -> list[str]:
    return [note.text for note in outcome.of(Note) if note.text.startswith("policy ")]


def policies(outcome: Outcome) -> list[tuple[str, str]]:
    return [(plan.policy, plan.purpose) for plan in outcome.of(PlanTaken)]


def test_a_better_plan_is_taken_after_the_step(laboratory: Laboratory) -> None:
    """Two nodes of five have no state to wait for, and nothing is lost when samples count again."""
    which = grid(laboratory, (Switch(policy="reroute", after="StepCommitted", nth=4),), policy="drop")
    outcome = laboratory.run(which)
    assert policies(outcome)[-1] == ("reroute", "reconfigure")
    assert told(outcome) == ["policy reroute: another plan is taken, since no sample is left out any more"]
    assert set(outcome.drops) == {2, 3, 4, 5} or set(outcome.drops) == {2, 3, 4}


def test_what_is_no_better_is_not_taken(laboratory: Laboratory) -> None:
    """Dropping would leave out what is rerouted; it is for the next loss."""
    switches = (Switch(policy="drop", after="StepCommitted", nth=4),)
    kills = (Kill(node=1, at="backward", step=2), Kill(node=4, at="forward", step=9))
    outcome = laboratory.run(grid(laboratory, switches, kills=kills, allow_drop=True))
    assert told(outcome) == ["policy drop: the plan in force goes on, nothing that it has for now is better"]
    assert min(outcome.drops) == 9
    taken = [policy for policy, _ in policies(outcome)]
    assert taken == ["reroute"] * 3 + ["drop"] * (len(taken) - 3)


@pytest.mark.parametrize("policy", ["templates", "adaptive"])
def test_shadows_are_taken_at_once(policy: str, laboratory: Laboratory) -> None:
    """They make replicas more, though their state has yet to come; the next loss finds them there."""
    switches = (Switch(policy="redundancy", after="StepCommitted", nth=3),)
    kills = (Kill(node=1, at="backward", step=8),)
    outcome = laboratory.run(grid(laboratory, switches, policy=policy, kills=kills))
    assert told(outcome) == ["policy redundancy: another plan is taken, since every layer has more replicas"]
    assert [purpose for name, purpose in policies(outcome) if name == "redundancy"][:2] == ["warm up", "reconfigure"]
    (recovery,) = outcome.of(Recovered)
    assert recovery.recovery.microbatches_rerun == 0


def test_it_is_kept_by_the_next_coordinator(laboratory: Laboratory) -> None:
    kills = (Kill(node=1, at="backward", step=9),)
    switches = (Switch(policy="reroute", after="StepCommitted", nth=3),)
    for commands in range(4):
        crashes = (Crash(after="PolicyRequested", commands=commands), Crash(after="StepCommitted", nth=6))
        outcome = laboratory.run(grid(laboratory, switches, policy="templates", kills=kills, crashes=crashes))
        assert outcome.restarts == 2
        expected = ["templates", "templates", "templates"] if commands == 0 else ["templates", "reroute", "reroute"]
        assert [policy for policy, _ in policies(outcome)] == expected, f"killed after {commands} commands"
        assert len(outcome.of(PolicySwitched)) == (commands > 0)


def test_a_job_that_waits_goes_on_under_a_policy_that_can(laboratory: Laboratory) -> None:
    kills = tuple(Kill(node=node, at="forward", step=step) for node, step in ((1, 2), (2, 3), (4, 4)))
    which = grid(
        laboratory,
        (Switch(policy="reroute", after="Waiting"),),
        policy="templates",
        kills=kills,
        when_exhausted="wait",
    )
    outcome = laboratory.run(which)
    assert outcome.of(Waiting)
    assert outcome.finish.status is RunStatus.COMPLETED
    assert policies(outcome)[-1][0] == "reroute"


@pytest.mark.parametrize("checkpoint_every", [0, 4])
def test_a_degraded_plan_that_has_the_state_saved_is_told_so(checkpoint_every: int, laboratory: Laboratory) -> None:
    kills = tuple(Kill(node=node, at="forward", step=step) for node, step in ((1, 2), (3, 3)))
    outcome = laboratory.run(grid(laboratory, (), kills=kills, checkpoint_every=checkpoint_every))
    (warning,) = (note.text for note in outcome.of(Note) if "the plan is degraded" in note.text)
    assert ("the state is saved now and then beside training" in warning) == (checkpoint_every == 0)


def test_a_policy_comes_back_as_it_was(laboratory: Laboratory) -> None:
    switches = (
        Switch(policy="templates", after="StepCommitted", nth=3),
        Switch(policy="adaptive", after="StepCommitted", nth=5),
    )
    cluster = laboratory.cluster(grid(laboratory, switches, policy="adaptive", kills=()))
    first = cluster.machine.policy
    outcome = cluster.run()
    assert len(outcome.of(PolicySwitched)) == 2
    assert cluster.machine.policy.answers is first.answers, "what it found is known still"


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (
            "drop",
            "policy drop leaves samples out, and the job file does not allow it. Set resilience.allow_drop = true",
        ),
        ("adaptive", "granted"),
        (
            "templates",
            "policy templates has no plan for this job: 2 nodes are left, and 2 replicas of 2 nodes each need 4",
        ),
    ],
)
def test_what_is_refused_says_why(policy: str, why: str, laboratory: Laboratory) -> None:
    """Two nodes are left, one half of the model each."""
    kills = tuple(Kill(node=node, at="forward", step=step) for node, step in ((1, 2), (2, 3), (4, 4), (5, 5)))
    outcome = laboratory.run(grid(laboratory, (Switch(policy=policy, after="StepCommitted", nth=8),), kills=kills))
    (asked,) = (line for line in outcome.history if "a switch to" in line)
    assert f"a switch to {policy}: {why}" in asked
    assert bool(outcome.of(PolicySwitched)) == (why == "granted")


def test_an_unknown_name_is_refused(laboratory: Laboratory) -> None:
    machine = laboratory.cluster(grid(laboratory, ())).machine
    refusal = machine.refusal("fastest")
    assert refusal == "policy = 'fastest' is unknown. Choose templates, reroute, redundancy, morph, drop, adaptive"
