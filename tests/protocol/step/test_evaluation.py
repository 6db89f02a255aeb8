"""Evaluations: when one is due, what scores say together, which is the best, and when the target is reached."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from planaria.job.sections.eval import EvalMetric, EvalSection, EvalTarget
from planaria.protocol.messages.from_worker import Score
from planaria.protocol.messages.records import Evaluated
from planaria.protocol.step.evaluation import Evaluations, evaluated


def record(evaluations: Evaluations, step: int, *scores: Score) -> Evaluated:
    found = evaluated(evaluations, dict(enumerate(scores)), step=step, generation=1, duration_s=1.0)
    evaluations.note(found)
    return found


def of_losses(losses: Sequence[float], **settings: object) -> Evaluations:
    evaluations = Evaluations(EvalSection(every=1, **settings), 10)  # type: ignore[arg-type]
    for step, loss in enumerate(losses, start=1):
        record(evaluations, step, Score(loss, 0, 0))
    return evaluations


def test_one_is_due_every_n_steps_and_at_the_end() -> None:
    evaluations = Evaluations(EvalSection(every=4), 10)
    assert [step for step in range(11) if evaluations.is_due(step)] == [4, 8, 10]
    record(evaluations, 4, Score(1.0, 0, 0))
    assert [step for step in range(11) if evaluations.is_due(step)] == [8, 10]
    evaluations.forget_after(3)
    assert evaluations.is_due(4), "the job went back before it"
    assert not any(Evaluations(EvalSection(), 10).is_due(step) for step in range(11))
    every = Evaluations(EvalSection(every=1), 3)
    assert [step for step in range(4) if every.is_due(step)] == [1, 2, 3]


def test_losses_weigh_as_much_as_they_have_labels() -> None:
    found = record(Evaluations(EvalSection(every=1), 3), 1, Score(1.0, 1, 1), Score(3.0, 1, 3))
    assert (found.loss, found.accuracy, found.microbatches) == (2.5, 0.5, 2)
    assert found.perplexity == math.exp(2.5)


def test_without_labels_all_weigh_alike() -> None:
    found = record(Evaluations(EvalSection(every=1), 3), 1, Score(1.0, 0, 0), Score(3.0, 1, 3))
    assert (found.loss, found.accuracy) == (2.0, None)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_never_the_best(loss: float) -> None:
    evaluations = Evaluations(EvalSection(every=1, stop_at=EvalTarget(metric=EvalMetric.LOSS, value=1e9)), 3)
    found = record(evaluations, 1, Score(loss, 0, 1))
    assert (found.loss, found.perplexity, found.is_best) == (None, None, False)
    assert evaluations.reached(1) is None


def test_the_first_of_equals_is_the_best() -> None:
    evaluations = of_losses([3.0, 2.0, 2.0, 4.0])
    assert evaluations.best_saved is None, "nothing is saved"
    for step in (1, 3, 4):
        evaluations.saved(step)
    assert evaluations.best_saved == 3
    evaluations.saved(2)
    assert evaluations.best_saved == 2
    evaluations.forget_after(1)
    assert evaluations.best_saved == 1
    assert of_losses([1.0], keep_best=False).best_saved is None


@pytest.mark.parametrize(("metric", "best"), [(EvalMetric.ACCURACY, 2), (EvalMetric.PERPLEXITY, 1)])
def test_the_best_is_by_the_jobs_metric(metric: EvalMetric, best: int) -> None:
    evaluations = Evaluations(EvalSection(every=1, metric=metric), 3)
    told = [record(evaluations, 1, Score(1.0, 1, 4)).is_best, record(evaluations, 2, Score(2.0, 2, 4)).is_best]
    assert told == [True, best == 2]
    for step in (1, 2):
        evaluations.saved(step)
    assert evaluations.best_saved == best


@pytest.mark.parametrize(
    ("metric", "value", "is_reached"),
    [("loss", 2.0, True), ("loss", 1.9, False), ("accuracy", 0.5, True), ("accuracy", 0.6, False)],
)
def test_a_target_is_reached_from_its_better_side(metric: str, value: float, is_reached: bool) -> None:
    target = EvalTarget(metric=EvalMetric(metric), value=value)
    evaluations = Evaluations(EvalSection(every=1, stop_at=target), 3)
    record(evaluations, 1, Score(2.0, 2, 4))
    assert (evaluations.reached(1) is not None) == is_reached
    assert evaluations.reached(2) is None
