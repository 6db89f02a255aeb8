"""Who counts as hung, and when."""

from __future__ import annotations

import pytest

from planaria.plan.plan import WorkerId
from planaria.protocol.membership.liveness import Limits, Liveness
from planaria.protocol.messages.from_worker import Activity, Pulse, beat_every_s

LIMITS = Limits(silence_s=1.0, oversubscribed_silence_s=10.0, least_s=1.0, factor=3.0, busy_s=60.0)


def worker(number: int) -> WorkerId:
    return WorkerId(number)


def pulse(activity: Activity, progress: int = 1, waits_for: int = -1) -> Pulse:
    return Pulse(activity=activity, progress=progress, waits_for=waits_for)


@pytest.fixture
def liveness() -> Liveness:
    """Three workers that joined at 0."""
    made = Liveness(LIMITS)
    for number in range(3):
        made.joined(worker(number), 0.0)
    return made


def hung(liveness: Liveness, now: float, instruction_s: float = 0.1, step_s: float = 0.2) -> list[int]:
    blocked = liveness.blocked(now, step_s)
    return [number for number, _ in [*liveness.hung(now, instruction_s), *([blocked] if blocked else [])]]


def test_a_worker_that_says_nothing_is_silent(liveness: Liveness) -> None:
    liveness.felt(worker(1), pulse(Activity.IDLE), 0.9)
    assert list(liveness.silent(1.0)) == []
    assert [number for number, _ in liveness.silent(1.5)] == [0, 2]
    liveness.forget(worker(0), 1.5)
    assert [number for number, _ in liveness.silent(1.5)] == [2]
    assert liveness.is_gone(1.1, runnable=False)
    assert not liveness.is_gone(9.0, runnable=True)
    assert liveness.is_gone(10.1, runnable=True)


def test_a_worker_answers_until_it_is_silent_for_half_as_long_as_a_lost_one(liveness: Liveness) -> None:
    assert liveness.answers(worker(0), 0.5)
    assert not liveness.answers(worker(0), 0.6)
    assert not liveness.answers(worker(7), 0.0), "it has not joined"


def test_thousands_may_be_silent_for_longer_as_they_beat_less_often() -> None:
    liveness = Liveness(LIMITS)
    for number in range(5000):
        liveness.joined(worker(number), 0.0)
    assert beat_every_s(5000) == 1.0
    assert list(liveness.silent(4.9)) == []
    assert len(list(liveness.silent(5.1))) == 5000
    assert not liveness.is_gone(4.9, runnable=False)


def test_who_waited_for_a_lost_worker_is_not_to_blame(liveness: Liveness) -> None:
    for number in range(3):
        liveness.felt(worker(number), pulse(Activity.WAITING, waits_for=2), 1.0)
    liveness.forget(worker(2), 5.0)
    assert hung(liveness, 5.9) == []


def test_who_does_not_join_is_late() -> None:
    liveness = Liveness(Limits(join_s=5.0))
    for number in range(3):
        liveness.started(worker(number), 10.0)
    liveness.joined(worker(1), 12.0)
    liveness.forget(worker(2), 13.0)
    assert list(liveness.late(15.0)) == []
    assert [number for number, _ in liveness.late(15.1)] == [0]


def test_a_judge_that_was_away_blames_nobody(liveness: Liveness) -> None:
    liveness.felt(worker(0), pulse(Activity.COMPUTING), 0.0)
    liveness.excuse(100.0, 99.9)
    assert list(liveness.silent(100.5)) == []
    assert hung(liveness, 100.5) == []


def test_a_judge_that_is_away_again_and_again_finds_who_hangs(liveness: Liveness) -> None:
    liveness.felt(worker(0), pulse(Activity.COMPUTING), 0.0)
    for now in range(1, 10):
        liveness.felt(worker(0), pulse(Activity.COMPUTING), float(now))
        liveness.excuse(float(now), 0.6)
    assert 0 in hung(liveness, 9.5)


def test_while_the_judge_was_away_nobody_was_late() -> None:
    liveness = Liveness(Limits(join_s=5.0))
    liveness.started(worker(0), 0.0)
    liveness.excuse(100.0, 99.0)
    assert list(liveness.late(103.0)) == []
    assert [number for number, _ in liveness.late(104.5)] == [0]


def test_one_instruction_for_too_long(liveness: Liveness) -> None:
    for now in (0.5, 1.0, 1.4):
        liveness.felt(worker(0), pulse(Activity.COMPUTING), now)
        liveness.felt(worker(1), pulse(Activity.COMPUTING, progress=int(now * 10)), now)
        liveness.felt(worker(2), pulse(Activity.WAITING, waits_for=0), now)
    assert hung(liveness, 1.5) == [], "a second is allowed to every instruction"
    assert hung(liveness, 1.6) == [0], "not those that move on, nor those that wait"
    assert hung(liveness, 1.6, instruction_s=0.5) == [], "three times the expectation"


@pytest.mark.parametrize(("speed", "lives"), [(0.5, True), (0.2, True), (0.05, False)])
def test_who_works_may_be_slow(speed: float, lives: bool, liveness: Liveness) -> None:
    """Instructions of a second; heartbeats tell that the thread works, for ten times as long at most."""
    liveness.felt(worker(0), pulse(Activity.COMPUTING), 0.0)
    for beat in range(1, int(5 / speed)):
        now = beat * 0.2
        liveness.felt(worker(0), pulse(Activity.COMPUTING), now, worked_s=now * 0.9)
        if hung(liveness, now, instruction_s=1.0):
            break
    else:
        assert lives
        return
    assert not lives
    assert now == pytest.approx(10.2, abs=0.1)


def test_who_stops_working_hangs(liveness: Liveness) -> None:
    for beat in range(1, 25):
        now = beat * 0.2
        liveness.felt(worker(0), pulse(Activity.COMPUTING), now, worked_s=min(now, 2.0) + 1e-5 * beat)
        if 0 in hung(liveness, now, instruction_s=1.0):
            break
    assert now == pytest.approx(3.4, abs=0.01), "three times the expectation since the pulse changed"


def test_what_no_estimate_is_made_of_has_a_limit_of_its_own(liveness: Liveness) -> None:
    liveness.felt(worker(0), pulse(Activity.IDLE), 0.1)
    liveness.felt(worker(1), pulse(Activity.IDLE), 0.1)
    assert hung(liveness, 59.0) == []
    assert hung(liveness, 61.0) == [2]


@pytest.mark.parametrize(
    ("states", "blamed"),
    [
        (((Activity.WAITING, 1), (Activity.WAITING, 2), (Activity.IDLE, -1)), [1]),
        (((Activity.WAITING, 1), (Activity.WAITING, 2), (Activity.COMPUTING, -1)), [2]),
        (((Activity.WAITING, 1), (Activity.WAITING, 0), (Activity.IDLE, -1)), [0]),
        (((Activity.IDLE, -1), (Activity.IDLE, -1), (Activity.IDLE, -1)), []),
    ],
    ids=["what worker 2 sent is stuck", "somebody computes", "in a circle", "nothing to do"],
)
def test_a_stuck_message_blames_who_should_have_sent_it(
    states: tuple[tuple[Activity, int], ...], blamed: list[int], liveness: Liveness
) -> None:
    for number, (activity, waits_for) in enumerate(states):
        liveness.felt(worker(number), pulse(activity, waits_for=waits_for), 1.0)
    assert hung(liveness, 1.9) == []
    assert hung(liveness, 2.1) == blamed


def test_whoever_is_silent_is_not_taken_for_hung_and_nobody_is_blamed_for_it(liveness: Liveness) -> None:
    """What worker 2 sent to worker 1 may be on its way for good: its silence says why, and is judged first."""
    for moment in (1.0, 1.4, 1.8, 2.2):
        liveness.felt(worker(0), pulse(Activity.WAITING, waits_for=1), moment)
        liveness.felt(worker(1), pulse(Activity.WAITING, waits_for=2), moment)
    liveness.felt(worker(2), pulse(Activity.COMPUTING), 1.0)
    assert hung(liveness, 2.3) == []
    liveness.felt(worker(2), pulse(Activity.IDLE), 1.0)
    assert hung(liveness, 2.3) == []
    liveness.felt(worker(2), pulse(Activity.IDLE), 2.2)
    assert hung(liveness, 2.3) == [1], "it is heard of, and waits for nothing"
