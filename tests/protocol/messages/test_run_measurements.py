"""What one coordinator learnt, another one knows: piece by piece. Whole runs are in tests/simulate/test_learnt.py."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from planaria.estimate.restore_time import Storage
from planaria.plan.plan import NodeId, PlanError, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.plan.thresholds import CHANGE_S
from planaria.policy.interface import Candidate
from planaria.policy.planner import Planner
from planaria.policy.templates import TemplatesPolicy
from planaria.protocol.messages.events import NodeGone, RanOut, Restarted, WorkerJoined
from planaria.protocol.messages.journal import Fate, JournalCommit, encode_entry
from planaria.protocol.messages.run_measurements import (
    KnownSpeeds,
    MeasuredMoves,
    MeasuredSaves,
    Rest,
    Rests,
    RunMeasurements,
    SeenLosses,
    Spent,
)
from planaria.protocol.planning.memory_limits import Shortages
from planaria.protocol.planning.straggler_detection import NodeSpeeds
from planaria.protocol.planning.straggler_policy import StragglerPolicy
from planaria.protocol.planning.transition_times import ReadRates, TransitionTimes
from planaria.protocol.run.replay import JournalState
from planaria.protocol.thresholds import (
    AGREEING_WINDOWS,
    FIRST_REST_STEPS,
    LEARNT_AGAIN_S,
    PLANS_CARRIED,
    SOON_STEPS,
)
from tests.plan.profiles import uniform_profile
from tests.protocol.planning.test_transition_times import take
from tests.protocol.run.test_replay import commit, node, plan
from tests.protocol.run.test_returning import Life, joined, returned, votes
from tests.protocol.test_coordinator import make_machine

PROFILE = uniform_profile(6, tied=False)
SETTINGS = PlannerSettings(num_microbatches=12, fault_tolerance=1, num_nodes=6, devices_per_node=1)


def with_learnt(entry: JournalCommit, learnt: RunMeasurements) -> JournalCommit:
    return JournalCommit(commit=entry.commit, records=entry.records, learnt=learnt)


# The journal


def test_the_last_that_was_said_counts() -> None:
    first, second = RunMeasurements(decision_s=1.0), RunMeasurements(decision_s=2.0)
    past = JournalState.of([plan(1, 1), with_learnt(commit(1), first), with_learnt(commit(2), second), commit(3)])
    assert past.learnt == second
    assert JournalState.of([plan(1, 1), commit(1)]).learnt == RunMeasurements()


def test_plans_that_carried_steps_are_known() -> None:
    plans = [plan(generation, generation) for generation in range(1, PLANS_CARRIED + 4)]
    entries = [entry for made in plans for entry in (made, commit(made.message.step, made.message.plan.generation))]
    past = JournalState.of([*entries, commit(90, PLANS_CARRIED + 3), plan(PLANS_CARRIED + 4, 91)])
    assert past.carried == tuple(made.message.plan for made in plans[-PLANS_CARRIED:])


@pytest.fixture
def life() -> Life:
    """In the first step."""
    life = Life(make_machine())
    life.does(*(WorkerJoined(WorkerId(worker), f"host:{worker}") for worker in range(3)))
    return life


def test_moments_of_another_hosts_clock_become_its_own() -> None:
    """Another coordinator leads on a host that booted at another time."""
    there = RunMeasurements(
        losses=SeenLosses(began=100.0, count=2, recent=(150.0, 190.0)),
        rests=Rests(quiet_until=205.0),
        saves=MeasuredSaves(began=180.0, took_s=2.0),
        spent=Spent(dollars=1.0, since=199.0),
        clock="a",
        at=200.0,
    )
    here = there.on("b", 7.0)
    assert here.losses == SeenLosses(began=-93.0, count=2, recent=(-43.0, -3.0))
    assert (here.rests.quiet_until, here.saves.began, here.spent.since) == (12.0, -13.0, 6.0)
    assert there.on("a", 7.0) is there, "on the same host, the time without a coordinator counts"
    earlier = msgspec.structs.replace(there, at=None)
    assert earlier.on("b", 7.0) is earlier, "of an earlier version, nobody knows"


def test_what_was_learnt_long_ago_is_written_down_again(life: Life) -> None:
    life.does(*votes(life, 0, 1, 2))
    later = 1.0 + LEARNT_AGAIN_S
    commands = [command for vote in votes(life, 0, 1, 2) for command in life.machine.handle(vote, later)]
    (entry,) = (command for command in commands if isinstance(command, JournalCommit))
    assert entry.learnt is not None
    assert entry.learnt.at == later


def test_a_step_that_teaches_nothing_writes_nothing(life: Life) -> None:
    life.does(*votes(life, 0, 1, 2))
    life.does(*votes(life, 0, 1, 2))
    *_, entry = life.journal
    assert isinstance(entry, JournalCommit)
    assert b"learnt" not in encode_entry(entry)


def test_a_loss_is_counted_by_the_next_coordinator(life: Life) -> None:
    life.does(NodeGone(NodeId(2), "x"))
    after = life.after()
    assert after.machine.learnt.losses == SeenLosses(began=1.0, count=1, last_step=1, nodes=1, recent=(1.0,))
    assert after.machine.learnt == life.machine.learnt
    lagging = life.after(cut=len(life.journal))
    assert lagging.machine.learnt == RunMeasurements(), "advice: what is missing is learnt anew"


def test_what_is_said_of_nodes_that_are_gone_is_forgotten() -> None:
    rest = Rest(until=30, num_steps=40)
    learnt = RunMeasurements(
        speeds=KnownSpeeds(slow={NodeId(0): 0.5, NodeId(1): 0.2}, changed={NodeId(1): (3,), NodeId(2): (4,)}),
        rests=Rests(resting=(NodeId(0), NodeId(1)), rests={NodeId(0): rest, NodeId(1): rest}, look_at=9),
    )
    entries = [*(node(n, Fate.JOINED) for n in range(3)), plan(1, 1), with_learnt(commit(1), learnt)]
    known = make_machine(JournalState.of([*entries, node(1, Fate.RELEASED)])).learnt
    assert known.speeds == KnownSpeeds(slow={NodeId(0): 0.5}, changed={NodeId(2): (4,)})
    assert known.rests == Rests(resting=(NodeId(0),), rests={NodeId(0): rest}, look_at=9)


def test_the_next_plan_is_for_the_speeds_that_were_known(life: Life) -> None:
    life.does(*votes(life, 0, 1, 2))
    told = life.told(0, type(life.journal[-1].commit))
    life.journal[-1] = with_learnt(life.journal[-1], RunMeasurements(speeds=KnownSpeeds(slow={NodeId(1): 0.1})))
    after = life.after()
    after.does(Restarted(), *joined(0, 1, 2), *(returned(life, w, commit=told) for w in range(3)))
    assert after.machine.state.speeds == {1: 0.1}
    slow = after.machine.policy.estimated(after.machine.plan).step_time_s
    assert slow > life.machine.policy.estimated(life.machine.plan).step_time_s


def test_what_steps_take_is_known_to_the_next_coordinator(life: Life) -> None:
    """And its estimates are the same ones."""
    life.does(*votes(life, 0, 1, 2))
    told = life.told(0, type(life.journal[-1].commit))
    life.journal[-1] = with_learnt(life.journal[-1], RunMeasurements(stretch=3.0))
    after = life.after()
    after.does(Restarted(), *joined(0, 1, 2), *(returned(life, w, commit=told) for w in range(3)))
    assert after.machine.learnt.stretch == 3.0
    before_s = life.machine.policy.estimated(life.machine.plan).step_time_s
    assert after.machine.policy.estimated(after.machine.plan).step_time_s == pytest.approx(3 * before_s)


# What is measured


def test_transition_times_are_known_to_a_successor() -> None:
    moving, successor = TransitionTimes(), TransitionTimes()
    take(moving, 0.02)
    moving.changed(1, 0.03)
    take(moving, 0.42, moves_s=0.1)
    take(moving, 7.0, restore=True)
    successor.recall(moving.measured)
    for one in (moving, successor):
        take(one, 0.62, moves_s=0.1)
        assert (one.change_s, one.restore_s) == (pytest.approx(0.03), 7.0)
        assert one.transfer_stretch == pytest.approx(5.0), "what takes as long where nothing moves is known"
    fresh = TransitionTimes()
    fresh.recall(MeasuredMoves())
    assert fresh.change_s == CHANGE_S


def test_read_rates_are_known_to_a_successor() -> None:
    loading = ReadRates(Storage(node_bytes_per_s=7.0, latency_s=3.0))
    loading.recall(())
    assert loading.storage == Storage(node_bytes_per_s=7.0, latency_s=3.0)
    loading.recall((10.0, 30.0, 20.0))
    assert loading.storage == Storage(node_bytes_per_s=20.0, latency_s=0.0)
    assert loading.rates == (10.0, 30.0, 20.0)


def test_a_node_that_changes_often_is_still_believed_more_slowly() -> None:
    settings = replace(SETTINGS, min_nodes=1)
    made = TemplatesPolicy.of(Planner(uniform_profile(8), settings)).initial([NodeId(n) for n in range(6)], 1).plan
    expected = dict.fromkeys(made.workers, 0.1)
    slow = expected | {WorkerId(1): 0.2}
    speeds = NodeSpeeds()
    speeds.recall(KnownSpeeds(changed={NodeId(1): (1, 4, 7)}), made.nodes)
    speeds.expect(made, expected)
    told = [step for step in range(8, 40) if speeds.committed(step, slow if step > 8 else expected)]
    assert told == [8 + (AGREEING_WINDOWS << 2)], "not after three steps, but four times as many"
    assert speeds.learnt == KnownSpeeds(slow={NodeId(1): 0.5}, changed={NodeId(1): (1, 4, 7, told[0])})


def test_a_node_that_rested_before_rests_twice_as_long() -> None:
    policy = TemplatesPolicy.of(Planner(PROFILE, SETTINGS))
    any_plan = policy.initial([NodeId(n) for n in range(6)], 1)

    def propose(without: frozenset[NodeId]) -> Candidate:
        if without not in (frozenset(), frozenset({NodeId(2)})):
            raise PlanError("needed")
        return replace(any_plan, step_time_s=0.5 if without else 1.0)

    pacing, successor = StragglerPolicy(), StragglerPolicy()
    pacing.look_again(5)
    pacing.choose(5, {NodeId(2): 0.2}, propose, None, 1000)
    assert pacing.resting == {2}
    successor.recall(pacing.learnt, [NodeId(2)])
    assert not successor.is_due(5 + FIRST_REST_STEPS - 1, now=0.0)
    assert successor.is_due(5 + FIRST_REST_STEPS, now=0.0), "it is tried again when its rest is over"
    successor.wake_all()
    successor.choose(40, {NodeId(2): 0.2}, propose, None, 1000)
    assert successor.learnt.rests == {NodeId(2): Rest(until=40 + 2 * FIRST_REST_STEPS, num_steps=2 * FIRST_REST_STEPS)}


# Memory


def gone(number: int) -> NodeGone:
    return NodeGone(NodeId(number), "out of memory", RanOut(worker=WorkerId(number), where="here"))


def shortages() -> Shortages:
    return Shortages(PROFILE, lambda size: TemplatesPolicy.of(Planner(PROFILE, replace(SETTINGS, memory_bytes=size))))


def test_plans_stay_below_what_failed() -> None:
    light = (
        TemplatesPolicy.of(Planner(PROFILE, replace(SETTINGS, min_nodes=3)))
        .initial([NodeId(n) for n in range(6)], 1)
        .plan
    )
    heavy = (
        TemplatesPolicy.of(Planner(PROFILE, replace(SETTINGS, min_nodes=2)))
        .initial([NodeId(n) for n in range(4)], 1)
        .plan
    )
    before, successor = shortages(), shortages()
    before.committed(light)
    before.note(gone(0), light, 5)
    successor.recall(before.learnt, [light])
    assert successor.bound_bytes == before.bound_bytes
    assert successor.allows(light)
    assert not successor.allows(heavy)
    assert str(successor.refuse(heavy)) == str(before.refuse(heavy))
    successor.note(gone(1), light, 5 + SOON_STEPS)
    assert successor.fatal is not None
    assert "nodes 0 and 1 ran out of memory" in successor.fatal
    last = shortages()
    last.recall(successor.learnt, [])
    assert last.fatal == successor.fatal
