"""When the votes of a step are enough to commit it, whoever is lost."""

from __future__ import annotations

import pytest

from planaria.plan.ledger import Ledger
from planaria.plan.plan import NodeId, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.policy.planner import Planner
from planaria.policy.templates import TemplatesPolicy
from planaria.protocol.messages.from_worker import Vote
from planaria.protocol.step.ballot import Ballot
from tests.plan.profiles import uniform_profile

WORKERS = [WorkerId(0), WorkerId(1), WorkerId(2)]


@pytest.fixture
def ballot() -> Ballot:
    """Of three pipelines of one worker each, with three microbatches."""
    settings = PlannerSettings(num_microbatches=3, fault_tolerance=1, num_nodes=3, devices_per_node=1)
    policy = TemplatesPolicy.of(Planner(uniform_profile(1, tied=False), settings))
    return Ballot(policy.initial([NodeId(node) for node in range(3)], 1).plan)


def vote(norms: tuple[int, ...], losses: tuple[int, ...]) -> Vote:
    return Vote(
        generation=1,
        step=1,
        norms=dict.fromkeys(norms, 1.0),
        losses=dict.fromkeys(losses, 1.0),
        ledger=Ledger.empty(1),
    )


def test_all_votes_are_enough_and_no_fewer(ballot: Ballot) -> None:
    for worker in WORKERS:
        assert not ballot.is_enough(WORKERS)
        ballot.cast(worker, vote((0,) if worker == 0 else (), (worker,)))
    assert ballot.is_enough(WORKERS)


def test_the_others_are_enough_where_nothing_was_lost_with_one_that_had_voted(ballot: Ballot) -> None:
    for worker in WORKERS:
        ballot.cast(worker, vote((0,), (0, 1, 2)))
    ballot.withdraw(WORKERS[1])
    assert ballot.is_enough([WORKERS[0], WORKERS[2]])


@pytest.mark.parametrize(("norms", "losses"), [((), (0, 1, 2)), ((0,), (0, 2))], ids=["norm", "loss"])
def test_they_are_not_where_it_alone_had_a_norm_or_a_loss(
    ballot: Ballot, norms: tuple[int, ...], losses: tuple[int, ...]
) -> None:
    ballot.cast(WORKERS[1], vote((0,), (1,)))
    ballot.cast(WORKERS[0], vote(norms, losses))
    ballot.cast(WORKERS[2], vote((), (2,)))
    ballot.withdraw(WORKERS[1])
    assert not ballot.is_enough([WORKERS[0], WORKERS[2]])
    assert not ballot.is_enough([]), "nobody is left"
