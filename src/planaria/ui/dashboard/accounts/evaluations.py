"""The evaluations of a run: the last ones, the best of all, and the best one of which there is a checkpoint. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from planaria.job.sections.eval import EvalSection
from planaria.protocol.messages.records import AnyRecord, CheckpointSaved, Evaluated, Restored
from planaria.protocol.step.evaluation import value_of

MOST_EVALUATIONS: Final = 500


class Evaluations:
    """The evaluations of a run. Give it every record, in order."""

    def __init__(self, section: EvalSection) -> None:
        """Makes a run that was never evaluated."""
        self._metric = section.metric
        self._keeps_best = section.keep_best
        self._kept: deque[Evaluated] = deque(maxlen=MOST_EVALUATIONS)
        self._best: Evaluated | None = None
        self._saved: Evaluated | None = None
        self._saved_steps: deque[int] = deque(maxlen=MOST_EVALUATIONS)

    def note(self, record: AnyRecord) -> None:
        """Notes an evaluation, a checkpoint, or that the run went back."""
        match record:
            case Evaluated():
                self._kept.append(record)
                self._best = self._better(self._best, record)
                self._save([record])
            case CheckpointSaved():
                self._saved_steps.append(record.step)
                self._save([found for found in self._kept if found.step == record.step])
            case Restored():
                kept = [found for found in self._kept if found.step <= record.to_step]
                self._kept = deque(kept, maxlen=MOST_EVALUATIONS)
                self._saved_steps = deque(
                    (step for step in self._saved_steps if step <= record.to_step), maxlen=MOST_EVALUATIONS
                )
                self._best = self._saved = None
                for found in kept:
                    self._best = self._better(self._best, found)
                self._save(kept)
            case _:
                pass

    def _save(self, evaluated: Iterable[Evaluated]) -> None:
        for found in evaluated:
            if found.step in self._saved_steps:
                self._saved = self._better(self._saved, found)

    def _better(self, best: Evaluated | None, found: Evaluated) -> Evaluated | None:
        """Returns the better one by the job's metric; of equals the first."""
        value = value_of(found, self._metric)
        before = None if best is None else value_of(best, self._metric)
        if value is None:
            return best
        if before is None:
            return found
        return found if (value > before if self._metric.rises else value < before) else best

    def rows(self) -> list[list[Any]]:
        """Returns the last evaluations: step, loss, accuracy, whether it was the best so far, perplexity."""
        return [[found.step, found.loss, found.accuracy, found.is_best, found.perplexity] for found in self._kept]

    def best(self) -> dict[str, Any] | None:
        """Returns the steps of the best evaluation by `metric`, and of the best one that is saved and kept (None: no
        checkpoint of one is); None: nothing was evaluated."""
        if self._best is None:
            return None
        saved = self._saved.step if self._keeps_best and self._saved is not None else None
        return {"metric": self._metric.value, "step": self._best.step, "saved": saved}
