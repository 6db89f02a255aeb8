"""Evaluations: the best of them, and the best of which there is a checkpoint."""

from __future__ import annotations

import msgspec

from planaria.job.sections.eval import EvalMetric
from planaria.protocol.messages.records import CheckpointSaved, Evaluated, Restored
from planaria.ui.dashboard.accounts.evaluations import Evaluations
from tests.runtime.run_folder.happenings import JOB


def evaluated(step: int, loss: float | None, accuracy: float = 0.5) -> Evaluated:
    return Evaluated(
        step=step, loss=loss, perplexity=None, accuracy=accuracy, microbatches=1, generation=1, duration_s=0.1
    )


def saved(step: int) -> CheckpointSaved:
    return CheckpointSaved(step=step, folder="", seconds=0.1)


def test_the_best_is_told_and_the_best_of_which_there_is_a_checkpoint() -> None:
    evaluations = Evaluations(JOB.eval)
    assert evaluations.best() is None
    for record in (
        evaluated(10, 3.0),
        saved(10),
        evaluated(20, 2.0),
        saved(30),
        evaluated(30, 2.5),
        evaluated(40, None),
    ):
        evaluations.note(record)
    assert evaluations.best() == {"metric": "loss", "step": 20, "saved": 30}
    assert [row[0] for row in evaluations.rows()] == [10, 20, 30, 40]
    evaluations.note(Restored(from_step=40, to_step=15, reason=""))
    assert evaluations.best() == {"metric": "loss", "step": 10, "saved": 10}


def test_more_is_better_of_accuracy() -> None:
    section = msgspec.structs.replace(JOB.eval, metric=EvalMetric.ACCURACY, keep_best=False)
    evaluations = Evaluations(section)
    for record in (evaluated(10, 1.0, 0.9), saved(10), evaluated(20, 0.5, 0.8)):
        evaluations.note(record)
    assert evaluations.best() == {"metric": "accuracy", "step": 10, "saved": None}
