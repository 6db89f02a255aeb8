"""Nothing counts that a worker says to a coordinator that began again, until it shows that it says it now."""

from __future__ import annotations

import pytest

from planaria.plan.plan import NodeId, WorkerId
from planaria.protocol.membership.challenge import ReconnectChallenge, Unproven
from planaria.protocol.messages.from_worker import Activity, Alive, Hello, Pulse, Ready
from planaria.protocol.messages.message import PROTOCOL_VERSION
from planaria.protocol.thresholds import MOST_HELD

HELLO = Hello(version=PROTOCOL_VERSION, token="token", worker=WorkerId(3), pid=1, data_address="nowhere:3")


@pytest.fixture
def doubts() -> ReconnectChallenge[str]:
    made: ReconnectChallenge[str] = ReconnectChallenge(follows=True)
    made.ask("way", HELLO, "new")
    return made


def test_a_coordinator_that_follows_another_asks_everybody(doubts: ReconnectChallenge[str]) -> None:
    """Also whom no journal knows: it may have said hello to a coordinator that was deposed."""
    assert doubts.about(NodeId(3))
    assert doubts.about(NodeId(4))
    assert doubts.is_asked("way")
    assert not doubts.is_asked("another way")


def test_the_first_coordinator_asks_those_alone_of_whom_a_device_comes_back() -> None:
    first: ReconnectChallenge[str] = ReconnectChallenge()
    assert not first.about(NodeId(3))
    first.doubt(NodeId(3))
    assert first.about(NodeId(3))
    assert not first.about(NodeId(4))


def test_what_was_said_meanwhile_is_heard_after_the_proof(doubts: ReconnectChallenge[str]) -> None:
    said = [Ready(generation=1), Alive(pulse=Pulse(activity=Activity.IDLE, progress=0))]
    for message in said:
        doubts.hold("way", message)
    assert doubts.proven("way", "new") == (HELLO, said)
    assert not doubts.is_asked("way")


def test_an_old_proof_is_none(doubts: ReconnectChallenge[str]) -> None:
    with pytest.raises(Unproven):
        doubts.proven("way", "old")


def test_a_challenge_holds_few_messages_and_is_forgotten(doubts: ReconnectChallenge[str]) -> None:
    for _ in range(MOST_HELD):
        doubts.hold("way", Ready(generation=1))
    with pytest.raises(Unproven):
        doubts.hold("way", Ready(generation=1))
    doubts.forget("way")
    assert not doubts.is_asked("way")
