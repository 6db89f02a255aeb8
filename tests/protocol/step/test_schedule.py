"""Learning rates, as functions of the step."""

from __future__ import annotations

import math

import pytest

from planaria.job.sections.train import LrSchedule, TrainSection
from planaria.protocol.step.schedule import learning_rate


def train(**changes: object) -> TrainSection:
    fields: dict[str, object] = {"steps": 10, "global_batch": 4, "microbatch": 1, "sequence_length": 8}
    return TrainSection(**(fields | {"learning_rate": 1.0, "min_lr_ratio": 0.1} | changes))  # type: ignore[arg-type]


def rates_of(section: TrainSection, **known: object) -> list[float]:
    return [learning_rate(section, step, **known) for step in range(1, 11)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schedule", "last"),
    [
        (LrSchedule.CONSTANT, 1.0),
        (LrSchedule.LINEAR, 0.1),
        (LrSchedule.COSINE, 0.1),
        (LrSchedule.WSD, 0.1),
        (LrSchedule.INVERSE_SQRT, math.sqrt(0.4)),
    ],
)
def test_a_warm_up_then_no_rise_to_the_last_rate(schedule: LrSchedule, last: float) -> None:
    rates = rates_of(train(warmup_steps=4, lr_schedule=schedule))
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[-1] == pytest.approx(last)
    assert rates[3:] == sorted(rates[3:], reverse=True)


def test_wsd_stays_and_then_decays_over_its_last_steps() -> None:
    rates = rates_of(train(lr_schedule="wsd", decay_steps=3, min_lr_ratio=0.0))
    assert rates == pytest.approx([1.0] * 7 + [2 / 3, 1 / 3, 0.0])
    assert rates_of(train(lr_schedule="wsd")) == pytest.approx([1.0] * 9 + [0.1]), "a tenth of the steps by default"
    longer = rates_of(train(lr_schedule="wsd", decay_steps=3, min_lr_ratio=0.0), ends=((0, 8), (8, 12)))
    assert longer == pytest.approx([1.0] * 5 + [2 / 3, 1 / 3, 0.0, 1.0, 2 / 3]), "steps that were trained keep theirs"


def test_a_function_says_what_each_steps_rate_is() -> None:
    assert rates_of(train(lr_schedule="a:b", learning_rate=0.5), factors=range(10)) == [n / 2 for n in range(10)]
