"""Small worlds keep every promise, wherever one fault is placed, whichever message is overtaken.

`make small-world` tries more of both.
"""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from planaria.job.registry import PolicyName
from planaria.protocol.messages.from_worker import SavedGroup
from planaria.protocol.step.ballot import Ballot
from tests.proof import rest_in_proof
from tests.testkit.cluster.network import COORDINATOR
from tests.testkit.small_world import (
    POLICIES,
    Blow,
    Tally,
    content,
    enumerate_orders,
    enumerate_part,
    enumerate_world,
    placements,
    run,
    small_world,
    world,
)


@pytest.mark.parametrize("policy", rest_in_proof(POLICIES))
def test_one_fault_on_any_delivery_breaks_no_promise(policy: PolicyName) -> None:
    tally = Tally()
    enumerate_world(world(policy), tally, most=1)
    assert not tally.failed
    assert tally.num_runs > 100
    assert len(tally.states) > tally.num_runs


@pytest.mark.proof
@pytest.mark.parametrize("policy", POLICIES)
def test_two_faults_on_any_deliveries_break_no_promise(policy: PolicyName) -> None:
    """Of the pairs, every 101st."""
    tally = Tally()
    enumerate_world(world(policy), tally, stride=101)
    assert not tally.failed


@pytest.mark.parametrize("policy", rest_in_proof(POLICIES))
def test_one_message_that_another_overtakes_breaks_no_promise(policy: PolicyName) -> None:
    tally = Tally()
    enumerate_orders(world(policy), tally, most=1)
    assert not tally.failed
    assert tally.num_runs - tally.num_futile > 10


@pytest.mark.proof
@pytest.mark.parametrize("policy", POLICIES)
def test_one_fault_beside_an_overtaking_breaks_no_promise(policy: PolicyName) -> None:
    """Of the faults, every 11th."""
    tally = Tally()
    enumerate_part(world(policy), tally, 1, 1, stride=11)
    assert not tally.failed


@pytest.mark.parametrize("policy", rest_in_proof(POLICIES))
def test_few_overtakings_at_the_coordinator_break_no_promise(policy: PolicyName) -> None:
    tally = Tally()
    enumerate_orders(world(policy, 1), tally, most=2, at=COORDINATOR)
    assert not tally.failed
    assert 40 < tally.num_runs < len(tally.states)


@pytest.mark.proof
def test_no_order_at_the_coordinator_breaks_a_promise() -> None:
    """Under one policy: `make small-world` tries them all."""
    tally = Tally()
    enumerate_orders(world(PolicyName.REROUTE, 1), tally, most=None, at=COORDINATOR)
    assert not tally.failed
    assert tally.num_runs - tally.num_futile > 100


def test_what_the_coordinator_holds_is_compared_without_times_and_in_the_order_in_which_it_came() -> None:
    one = SavedGroup(group=1, file="f", size_bytes=2, sha256="x")
    assert content({1: 2.0, 3: {4, 5}}) == content({1: 7.5, 3: {5, 4}})
    assert content({1: 2, 3: 4}) != content({3: 4, 1: 2})
    assert content([one, 0.5]) == content([SavedGroup(group=1, file="f", size_bytes=2, sha256="x"), 0.7])
    assert content(one) != content(SavedGroup(group=1, file="g", size_bytes=2, sha256="x"))


def test_the_order_at_one_place_is_another_and_each_connection_keeps_its_own() -> None:
    base = run(world(PolicyName.REROUTE, 1))
    tally = Tally()
    enumerate_orders(world(PolicyName.REROUTE, 1), tally, most=1)
    assert len(tally.states) > len(set(base.states)), "other histories"
    for number in range(len(base.choices)):
        found = run(world(PolicyName.REROUTE, 1), kept=(number,))
        if not found.is_futile:
            break
    assert found.deliveries != base.deliveries
    assert sorted(found.deliveries) == sorted(base.deliveries), "nothing is lost or sent twice"
    assert found == run(world(PolicyName.REROUTE, 1), kept=(number,)), "one order gives one history"


def test_only_messages_between_workers_arrive_damaged() -> None:
    placed = [(one.delivery, one.blow) for one in placements([(COORDINATOR, 0), (0, 1)], first=0)]
    assert (0, Blow.DAMAGE) not in placed
    assert (1, Blow.DAMAGE) in placed
    assert len(placed) == 7


def test_one_placement_gives_one_history() -> None:
    (first, *_) = placements(run(world(PolicyName.REROUTE)).deliveries, first=20)
    assert run(world(PolicyName.REROUTE), (first,)) == run(world(PolicyName.REROUTE), (first,))


def test_a_broken_protocol_is_found_and_where_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ballot, "is_enough", lambda self, live: True)
    result = CliRunner().invoke(small_world, ["--faults", "1"])
    assert result.exit_code == 1
    assert "FAILED templates" in result.output
