"""What is told of a step."""

from __future__ import annotations

import math

import pytest

from planaria.job.sections.train import TrainSection
from planaria.plan.plan import NodeId
from planaria.protocol.messages.to_worker import NOT_APPLIED, Commit
from planaria.protocol.run.announcements import replicas_note, step_committed
from tests.protocol.test_coordinator import make_machine

PROPOSAL = make_machine().policy.initial([NodeId(node) for node in range(3)], 1)
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


def test_that_there_are_enough_replicas_again_is_told_once() -> None:
    again = replicas_note(PROPOSAL, 1, was_degraded=True, writes_checkpoints=True)
    assert again is not None
    assert again.text == "every layer has 2 replicas again"
    assert replicas_note(PROPOSAL, 1, was_degraded=False, writes_checkpoints=True) is None
