"""What is told of a step."""

from __future__ import annotations

import math

import pytest

from planaria.job.sections.train import TrainSection
from planaria.protocol.messages.to_worker import NOT_APPLIED, Commit
from planaria.protocol.run.announcements import step_committed

TRAIN = TrainSection(steps=3, global_batch=8, microbatch=2, sequence_length=16)


def commit(*dropped: int, clip_factor: float = 1.0) -> Commit:
    return Commit(generation=1, step=2, clip_factor=clip_factor, exponents=(0,), hold=False, dropped=dropped)


@pytest.mark.parametrize(("dropped", "samples"), [((), 8), ((1,), 6), ((0, 3), 4)])
def test_tokens_are_those_of_samples_that_were_not_left_out(dropped: tuple[int, ...], samples: int) -> None:
    record = step_committed(TRAIN, commit(*dropped), loss=1.0, norm=1.0, live_nodes=3, duration_s=2.0)
    assert record.tokens_per_s == samples * 16 / 2.0


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 2.0), (2.0, math.inf)])
def test_a_number_that_is_none_is_not_told_as_one(loss: float, norm: float) -> None:
    record = step_committed(TRAIN, commit(clip_factor=NOT_APPLIED), loss=loss, norm=norm, live_nodes=3, duration_s=2.0)
    assert (record.loss, record.grad_norm) == (None if math.isnan(loss) else loss, None if math.isinf(norm) else norm)
