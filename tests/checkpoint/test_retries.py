"""Calls that are tried again: how long, what is heard of them, and what people are told where many fail."""

from __future__ import annotations

import logging
import socket

import pytest

from planaria.checkpoint import retries
from planaria.checkpoint.retries import (
    FORGOTTEN_S,
    TOLD_EVERY_S,
    UNRESOLVED_S,
    RetryNews,
    StoreError,
    Tries,
    at_first_contact,
    heard_by,
    told_by,
)
from planaria.plan.plan import WorkerId
from planaria.protocol.messages.from_worker import StoreTried, TryOutcome, decode_from_worker
from planaria.protocol.messages.message import encode

PLACE = "s3://bucket/run"


class Flaky:
    """A call that fails so often."""

    def __init__(self, times: int, error: Exception) -> None:
        self.times = times
        self.error = error

    def __call__(self) -> str:
        self.times -= 1
        if self.times >= 0:
            raise self.error
        return "done"


class Clock:
    """Passes by sleep alone."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(retries, "time", made)
    return made


def outcomes(heard: list[StoreTried]) -> list[tuple[str, int]]:
    return [(said.outcome.value, said.failed) for said in heard]


def test_who_hears_is_told_of_each_attempt_that_fails_and_of_the_one_that_comes_through() -> None:
    heard: list[StoreTried] = []
    outer: list[StoreTried] = []
    with heard_by(outer.append), heard_by(heard.append):
        assert Tries(PLACE)("write a", Flaky(2, OSError(5, "no route"))) == "done"
        assert Tries(PLACE)("write b", Flaky(0, OSError())) == "done"
    assert outcomes(heard) == [("again", 1), ("again", 2), ("through", 2)]
    assert {(said.place, said.doing, said.why) for said in heard} == {(PLACE, "write a", "no route")}
    assert outer == []
    assert decode_from_worker(encode(heard[0])) == heard[0]


def test_a_call_is_given_up_when_there_is_no_patience_left(clock: Clock) -> None:
    heard: list[StoreTried] = []
    with heard_by(heard.append), pytest.raises(StoreError, match="no route"):
        Tries(PLACE, patience_s=10.0)("write a", Flaky(10**9, OSError(5, "no route")))
    assert outcomes(heard) == [*(("again", number) for number in range(1, 5)), ("given_up", 5)]
    assert [said.again_s for said in heard] == [0.5, 1.0, 2.0, 4.0, 0.0]
    assert heard[-1].seconds == clock.now == 7.5


def test_an_answer_is_no_failure_and_what_another_attempt_does_not_change_is_not_tried_again() -> None:
    heard: list[StoreTried] = []
    with heard_by(heard.append):
        with pytest.raises(FileNotFoundError):
            Tries(PLACE)("read a", Flaky(1, FileNotFoundError("a")))
        with pytest.raises(StoreError, match="denied"):
            Tries(PLACE)("read a", Flaky(1, PermissionError("denied")))
        assert heard == []
        errors = iter([OSError("no route"), FileNotFoundError("a")])

        def answered() -> None:
            raise next(errors)

        with pytest.raises(FileNotFoundError):
            Tries(PLACE)("read a", answered)
    assert outcomes(heard) == [("again", 1), ("through", 1)]


def test_a_name_that_never_resolved_is_tried_for_seconds_where_a_run_begins_and_as_ever_later(clock: Clock) -> None:
    def unresolved() -> None:
        try:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        except OSError:
            raise RuntimeError("cannot connect") from None  # as file systems do, each in its own way

    def tried_s(place: str) -> float:
        began = clock.now
        with pytest.raises(StoreError) as raised:
            Tries(place)("fetch a", unresolved)
        assert ("a name in it does not resolve" in str(raised.value)) == (clock.now - began < UNRESOLVED_S)
        return clock.now - began

    place, known = "https://wrong.example/a", "https://right.example/a"
    assert tried_s(place) > 50
    with at_first_contact():
        assert tried_s(place) <= UNRESOLVED_S
        Tries(known)("look at it", lambda: None)
        assert tried_s(known) <= UNRESOLVED_S, "a look may have asked nobody"
        for _ in range(2):
            Tries(known)("fetch a", lambda: None)
        assert tried_s("https://right.example/b") > 50
        with pytest.raises(StoreError, match="no route"):
            Tries(place)("fetch a", Flaky(10**9, OSError(5, "no route")))
    assert tried_s(place) > 50


def test_where_nobody_hears_the_log_has_a_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Tries(PLACE)("write a", Flaky(1, OSError(5, "no route")))
    again, through = (record.getMessage() for record in caplog.records)
    assert again == f"{PLACE}: cannot write a (attempt 1: no route); tried again in 0.5 s"
    assert through == f"{PLACE}: attempt 2 to write a came through, 0.5 s after the first"


def tried(doing: str, outcome: TryOutcome, failed: int = 1) -> StoreTried:
    return StoreTried(place=PLACE, doing=doing, failed=failed, outcome=outcome, why="no route", again_s=0.5)


def test_people_are_told_that_calls_begin_to_fail_and_that_all_came_through() -> None:
    news = RetryNews()
    first = news.take(tried("write a", TryOutcome.AGAIN), 0.0, worker=WorkerId(0))
    assert first == ("warning", f"{PLACE}: cannot write a (attempt 1: no route); tried again in 0.5 s")
    for worker in range(1, 8):
        assert news.take(tried("write a", TryOutcome.AGAIN), 0.1, worker=WorkerId(worker)) is None
    later = news.take(tried("write a", TryOutcome.AGAIN, 5), TOLD_EVERY_S, worker=WorkerId(0))
    assert later is not None
    assert later[1].endswith("tried again in 0.5 s, as are 7 others")
    for worker in range(7):
        assert news.take(tried("write a", TryOutcome.THROUGH), 20.0, worker=WorkerId(worker)) is None
    last = news.take(tried("write a", TryOutcome.THROUGH, 2), 20.0, worker=WorkerId(7))
    assert last == ("info", f"{PLACE}: attempt 3 to write a came through, 0.0 s after the first")


def test_of_failures_that_were_not_told_the_end_is_not_told_either() -> None:
    news = RetryNews()
    for moment, doing in enumerate(("write a", "write b")):
        told = news.take(tried(doing, TryOutcome.AGAIN), moment), news.take(tried(doing, TryOutcome.THROUGH), moment)
        assert [note is not None for note in told] == [moment == 0] * 2


def test_one_line_tells_that_calls_are_given_up() -> None:
    news = RetryNews()
    for doing in ("write a", "write b"):
        news.take(tried(doing, TryOutcome.AGAIN), 0.0)
    told = [news.take(tried(doing, TryOutcome.GIVEN_UP, 9), 60.0) for doing in ("write a", "write b")]
    assert [note and note[1] for note in told] == [
        f"{PLACE}: attempt 9 to write a failed too, 0.0 s after the first (no route): it is given up", None,
    ]  # fmt: skip


def test_a_call_of_which_nothing_is_heard_any_more_is_not_waited_for() -> None:
    news = RetryNews()
    news.take(tried("write a", TryOutcome.AGAIN), 0.0, worker=WorkerId(0))
    news.take(tried("write b", TryOutcome.AGAIN), 0.0, worker=WorkerId(1))
    assert news.take(tried("write b", TryOutcome.THROUGH), FORGOTTEN_S + 1, worker=WorkerId(1)) is not None


def test_a_process_without_records_tells_people_itself() -> None:
    levels: list[str] = []
    with told_by(lambda level, text: levels.append(level)):
        Tries(PLACE)("write a", Flaky(3, OSError(5, "no route")))
    assert levels == ["warning", "info"]
