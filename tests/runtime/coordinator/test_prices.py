"""What a command says of a price, and what it may do instead."""

from __future__ import annotations

import pytest

from planaria.runtime.coordinator import prices
from planaria.runtime.coordinator.prices import asked


def test_a_price_is_a_number() -> None:
    assert asked("echo ' 1.25 '") == 1.25
    assert asked("echo 0") == 0.0


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("echo 1; exit 3", "ended with exit code 3"),
        ("no-such-command", "ended with exit code 127"),
        ("true", "printed '', which is no price"),
        ("echo -1", "printed '-1', which is no price"),
        ("echo nan", "printed 'nan', which is no price"),
        ("echo 1 2", "printed '1 2', which is no price"),
    ],
)
def test_what_is_no_price_is_told(command: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        asked(command)


def test_a_command_that_hangs_is_killed_with_what_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices, "COMMAND_WITHIN_S", 0.1)
    with pytest.raises(ValueError, match="was not done within 0 s"):
        asked("sleep 600 & wait")
