"""How many connections without the token may be open, for how long, and what is told of them."""

from __future__ import annotations

from planaria.runtime.thresholds import TELL_EVERY_S
from planaria.runtime.wire.unauthenticated import Strangers


def test_whoever_has_been_silent_longest_makes_room() -> None:
    strangers: Strangers[str] = Strangers([].append, 5.0, most=2)
    assert strangers.came("a", 0.0) is None
    assert strangers.came("b", 1.0) is None
    assert strangers.came("c", 2.0) == "a"
    strangers.gone("a")
    strangers.gone("b")
    assert strangers.came("d", 3.0) is None
    assert list(strangers) == ["c", "d"]


def test_the_silent_are_overdue() -> None:
    strangers: Strangers[str] = Strangers([].append, 5.0)
    strangers.came("a", 0.0)
    strangers.came("b", 3.0)
    assert strangers.overdue(5.0) == []
    assert strangers.overdue(5.1) == ["a"]
    strangers.gone("a")
    assert strangers.overdue(9.0) == ["b"]


def test_a_flood_of_refusals_is_told_in_few_lines() -> None:
    said: list[str] = []
    strangers: Strangers[str] = Strangers(said.append, 5.0)
    strangers.tell(0.0)
    assert said == []
    strangers.refused("no token")
    strangers.tell(0.0)
    for _ in range(1000):
        strangers.refused("a frame of 9 GB")
    strangers.tell(TELL_EVERY_S / 2)
    assert said == ["a connection was refused, the last because of this: no token"]
    strangers.tell(TELL_EVERY_S)
    assert said[1:] == ["1000 connections were refused, the last because of this: a frame of 9 GB"]
    strangers.tell(2 * TELL_EVERY_S)
    assert len(said) == 2
