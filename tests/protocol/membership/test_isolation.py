"""A judge who hears of nobody suspects itself; and of two that do not reach each other, who goes."""

from __future__ import annotations

from planaria.plan.plan import NodeId, WorkerId
from planaria.protocol.membership.failure_detector import Accusations, Isolation
from planaria.protocol.membership.liveness import Limits, Liveness
from planaria.protocol.messages.from_worker import Activity, Pulse


def test_while_somebody_is_heard_of_everybody_may_be_judged() -> None:
    isolation = Isolation(60.0, 1.0)
    assert not isolation.holds(0.4)
    assert isolation.ended() == 0.0


def test_when_nobody_is_heard_of_nobody_is_judged_and_then_there_is_time_to_come_back() -> None:
    isolation = Isolation(60.0, 1.0)
    assert isolation.holds(0.6)
    assert isolation.holds(7.0)
    assert not isolation.holds(0.1)
    assert isolation.ended() == 7.0
    assert isolation.ended() == 0.0


def test_an_isolated_coordinator_has_patience_for_so_long() -> None:
    isolation = Isolation(60.0, 1.0)
    assert isolation.holds(60.0)
    assert not isolation.holds(60.1)
    assert not Isolation(0.0, 1.0).holds(5.0), "without patience, silence is judged as ever"


def test_after_its_patience_whoever_is_silent_is_judged() -> None:
    isolation = Isolation(60.0, 1.0)
    assert isolation.holds(59.0)
    assert not isolation.holds(60.1)
    assert isolation.ended() == 0.0, "nobody came back who could be excused"


def test_the_last_sign_of_anybody_counts() -> None:
    liveness = Liveness(Limits(silence_s=1.0))
    assert liveness.quiet_s(100.0) == 0.0
    for worker in range(3):
        liveness.joined(WorkerId(worker), 100.0)
    liveness.felt(WorkerId(1), Pulse(activity=Activity.IDLE, progress=1), 104.0)
    assert liveness.quiet_s(105.0) == 1.0
    assert [worker for worker, _ in liveness.silent(105.0)] == [0, 2]
    liveness.excuse(105.0 + 4.0, 2 * 4.0)
    assert list(liveness.silent(109.5)) == []
    assert [worker for worker, _ in liveness.silent(110.5)] == [0, 1, 2]


def test_one_bad_link_does_not_take_its_peers_one_by_one() -> None:
    accusations = Accusations()
    bad, others = NodeId(9), [NodeId(number) for number in range(3)]
    assert accusations.judge(others[0], bad) == others[0], "one report does not tell whose link it is"
    assert accusations.judge(others[1], bad) == bad
    accusations = Accusations()
    assert accusations.judge(bad, others[0]) == bad
    assert accusations.judge(others[1], others[2]) == others[1]
