"""Evaluations: when one is due, what its scores say together, which was the best, and whether the target is reached."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec

from planaria.job.sections.eval import EvalMetric, EvalSection
from planaria.protocol.messages.from_worker import Score
from planaria.protocol.messages.records import Evaluated

_LARGEST_EXPONENT = 700.0
"""Of e, that a float holds."""


class Evaluations:
    """The evaluations of one run.

    Args:
        settings: of the job.
        last_step: of the job.
        done: what was evaluated before.
    """

    def __init__(self, settings: EvalSection, last_step: int, done: Iterable[Evaluated] = ()) -> None:
        self._settings = settings
        self._last_step = last_step
        self._done = {record.step: record for record in done}
        self._saved: set[int] = set()

    @property
    def num_microbatches(self) -> int:
        """Number of microbatches of an evaluation."""
        return self._settings.microbatches

    def is_due(self, committed: int) -> bool:
        """Returns whether the state after this step is to be evaluated, and has not been."""
        every = self._settings.every
        if not every or committed < 1 or committed in self._done:
            return False
        return committed % every == 0 or committed == self._last_step

    def saves(self, committed: int) -> bool:
        """Returns whether a checkpoint is to be written because of the evaluation of this step: it may be the best."""
        return self._settings.keep_best and self.is_due(committed)

    def note(self, record: Evaluated) -> None:
        self._done[record.step] = record

    def saved(self, step: int) -> None:
        """Records that there is a checkpoint of the state after this step."""
        self._saved.add(step)

    def forget_after(self, step: int) -> None:
        """Forgets evaluations of later steps: the job goes back."""
        self._done = {done: record for done, record in self._done.items() if done <= step}
        self._saved = {saved for saved in self._saved if saved <= step}

    @property
    def last(self) -> Evaluated | None:
        """The evaluation of the latest step; None: there was none."""
        return self._done[max(self._done)] if self._done else None

    def is_best(self, value: float | None) -> bool:
        """Returns whether a value of the job's metric is better than all before."""
        return value is not None and all(not self._beats(self._of(other), value) for other in self._done.values())

    @property
    def best_saved(self) -> int | None:
        """The step of the best evaluation whose state is on disk, if the job wants it kept; of equals the first."""
        if not self._settings.keep_best:
            return None
        best: Evaluated | None = None
        for step in sorted(self._saved & self._done.keys()):
            value = self._of(self._done[step])
            if value is not None and (best is None or not self._beats(self._of(best), value)):
                best = self._done[step]
        return None if best is None else best.step

    def reached(self, step: int) -> str | None:
        """Returns that the evaluation of this step reached the target, for people; None: it did not."""
        record, target = self._done.get(step), self._settings.stop_at
        value = None if record is None or target is None else value_of(record, target.metric)
        if value is None or target is None:
            return None
        if (value < target.value) if target.metric.rises else (value > target.value):
            return None
        return f"{target.metric.value} {value:.6g} after step {step} reaches eval.stop_at {target.value:g}"

    @property
    def metric(self) -> EvalMetric:
        return self._settings.metric

    def _of(self, record: Evaluated) -> float | None:
        return value_of(record, self.metric)

    def _beats(self, old: float | None, new: float) -> bool:
        """Returns whether the old value is as good as the new one."""
        return old is not None and (old >= new if self.metric.rises else old <= new)


def value_of(record: Evaluated, metric: EvalMetric) -> float | None:
    """Returns what an evaluation says of a metric."""
    match metric:
        case EvalMetric.LOSS:
            return record.loss
        case EvalMetric.PERPLEXITY:
            return record.perplexity
        case EvalMetric.ACCURACY:
            return record.accuracy


def evaluated(
    settings: Evaluations, scores: Mapping[int, Score], *, step: int, generation: int, duration_s: float
) -> Evaluated:
    """Returns the record of an evaluation, for a coordinator or for a process that trains alone.

    A loss counts as often as its microbatch has labels. Everything is added in microbatch order, in float64.

    Args:
        settings: the evaluations so far.
        scores: microbatch -> what was made of it.
        step: the last committed one.
        generation: of the plan.
        duration_s: seconds that it took.
    """
    ordered = [scores[microbatch] for microbatch in sorted(scores)]
    is_counted = all(score.num_labels > 0 for score in ordered)
    total, num_labels, num_right = 0.0, 0, 0
    for score in ordered:
        weight = score.num_labels if is_counted else 1
        total += score.loss * weight
        num_labels += weight
        num_right += score.num_right
    loss = total / num_labels
    record = Evaluated(
        step=step,
        loss=loss if math.isfinite(loss) else None,
        perplexity=math.exp(loss) if loss < _LARGEST_EXPONENT else None,
        accuracy=num_right / num_labels if is_counted else None,
        microbatches=len(ordered),
        generation=generation,
        duration_s=duration_s,
    )
    return msgspec.structs.replace(record, is_best=settings.is_best(value_of(record, settings.metric)))
