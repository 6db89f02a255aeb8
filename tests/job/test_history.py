"""What determined a run's samples: told apart, and kept in order."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from planaria.job.history import DataIdentity, JobInterval, continued

DATA = DataIdentity(
    content="a", tokens=1000, tokenizer="bytes", vocab_size=259, sequence_length=16, mask_probability=0.15, seed=0
)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, []),
        ({"content": "b", "tokens": 1200}, ["the data grew from 1000 to 1200 tokens"]),
        ({"content": "b", "tokens": 800}, ["the data shrank from 1000 to 800 tokens"]),
        ({"content": "b"}, ["the 1000 tokens are others"]),
        ({"tokenizer": "c"}, ["the tokenizer is another"]),
        ({"tokenizer": ""}, []),
        ({"mask_probability": 0.2}, ["the share of masked tokens is 0.2, not 0.15"]),
        (
            {"sequence_length": 32, "vocab_size": 300},
            ["the vocabulary has 300 ids, not 259", "windows have 32 tokens, not 16"],
        ),
        ({"seed": 1}, ["the seed is 1, not 0"]),
    ],
)
def test_what_changed_is_told(changes: dict[str, Any], told: list[str]) -> None:
    assert DATA.changes(msgspec.structs.replace(DATA, **changes)) == told


def test_a_history_has_what_was_trained() -> None:
    first = JobInterval(since=0, steps=10, data=DATA)
    assert continued((), first) == (first,)
    assert continued((first,), JobInterval(since=4, steps=10, data=DATA)) == (first,)
    longer = JobInterval(since=4, steps=20, data=DATA)
    assert continued((first,), longer) == (first, longer)
    again = JobInterval(since=4, steps=30, data=DATA)
    assert continued((first, longer), again) == (first, again)
    assert continued((first,), JobInterval(since=0, steps=30, data=DATA)) == (
        JobInterval(since=0, steps=30, data=DATA),
    )
