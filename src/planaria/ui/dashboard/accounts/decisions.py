"""Decisions with regret: what each weighed, what came of it, and what the others would have given as far as is known.

What is known: the samples trained under the plan that was taken, and the seconds of their steps. What each candidate
would have given in these seconds is estimated: its steps after its transition, by the figures of the decision, times
what was trained over what was estimated of the one taken. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from planaria.job.sections.train import TrainSection
from planaria.policy.candidate_record import CandidateRecord
from planaria.protocol.messages.records import (
    AnyRecord,
    PlanMeasured,
    PlanTaken,
    Restored,
    StepCommitted,
    StepSkipped,
)

MOST_DECISIONS: Final = 40
MOST_CANDIDATES: Final = 8

PLACED: Final = ("start", "reconfigure", "restore")
"""Purposes of plans that say where the layers are from now on."""

_WARM_UP: Final = "warm up"
_LATER: Final = ", then "
"""In the name of a candidate: what is taken after the step that comes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """What a decision cost beside the best of its candidates, in hindsight.

    Attributes:
        factor: samples trained over those that were estimated of the candidate taken, for the same seconds.
        samples: that each candidate would have given; of the first one, the one taken, those that it gave.
        lost: samples by which the best candidate would have given more.
        best: its place.
    """

    factor: float
    samples: tuple[float, ...]
    lost: float
    best: int


def regret(candidates: Sequence[CandidateRecord], samples: float, seconds: float, batch: int) -> Regret | None:
    """Returns what a decision cost; None where it cannot be known.

    Args:
        candidates: that were weighed, the one taken first.
        samples: trained under it, less those that were undone for it.
        seconds: of the steps in which they were.
        batch: samples of a step, where a candidate does not tell its own.
    """
    estimated = [_estimated(candidate, seconds, batch) for candidate in candidates]
    if not estimated or estimated[0] <= 0 or samples <= 0:
        return None
    factor = samples / estimated[0]
    given = tuple(factor * value for value in estimated)
    best = max(range(len(given)), key=lambda at: given[at])
    return Regret(factor=factor, samples=given, lost=max(0.0, given[best] - samples), best=best)


def _estimated(candidate: CandidateRecord, seconds: float, batch: int) -> float:
    """Returns the samples that a candidate was thought to train in so many seconds."""
    each = candidate.samples or batch
    return each * max(0.0, seconds - candidate.transition_s) / candidate.step_time_s if candidate.step_time_s else 0.0


@dataclass(slots=True, kw_only=True)
class _Decision:
    at_s: float
    plan: PlanTaken
    weighed: tuple[CandidateRecord, ...]
    steps: int = 0
    seconds: float = 0.0
    samples: float = 0.0
    measured_steps: int = 0
    measured_step_s: float | None = None
    measured_transition_s: float | None = None

    def goes_on_with(self, plan: PlanTaken) -> bool:
        """Whether a plan is the second part of this decision: the one for which state moved, or a step was rerouted."""
        if not plan.candidates or not self.weighed:
            return False
        name = self.weighed[0].name
        return (self.plan.purpose == _WARM_UP or _LATER in name) and plan.candidates[0].name == name.split(_LATER)[-1]

    def regret(self, batch: int) -> Regret | None:
        return regret(self.weighed, self.samples, self.seconds, batch)


class Decisions:
    """The decisions of a run. Give it every record with its time since the run began, in order."""

    def __init__(self, train: TrainSection) -> None:
        """Makes a run without decisions."""
        self._batch, self._microbatch = train.global_batch, train.microbatch
        self._kept: deque[_Decision] = deque(maxlen=MOST_DECISIONS)
        self._is_standing = False
        self._undone = 0
        self._num = self._num_judged = self._num_others = 0
        self._lost = self._trained = 0.0

    def note(self, record: AnyRecord, at_s: float) -> None:
        """Notes what a record says of decisions."""
        match record:
            case StepCommitted() | StepSkipped():
                self.committed(1, record.duration_s, len(record.dropped))
            case PlanTaken():
                self._taken(record, at_s)
            case Restored():
                self._undone = (record.from_step - record.to_step) * self._batch
            case PlanMeasured() if self._kept and record.steps:
                self._measured(self._kept[-1], record)
            case _:
                pass

    def committed(self, steps: int, seconds: float, dropped: int) -> None:
        """Notes so many steps in a row, the seconds that they took, and how many microbatches they left out."""
        if not self._is_standing:
            return
        decision = self._kept[-1]
        decision.steps += steps
        decision.seconds += seconds
        decision.samples += steps * self._batch - self._microbatch * dropped

    def _taken(self, plan: PlanTaken, at_s: float) -> None:
        if plan.purpose not in PLACED and not (plan.purpose == _WARM_UP and plan.candidates):
            self._is_standing = self._is_standing and plan.purpose == _WARM_UP
            return
        if self._is_standing and self._kept[-1].goes_on_with(plan):
            self._kept[-1].plan = plan
            return
        if self._kept:
            self._close(self._kept[-1])
        self._kept.append(_Decision(at_s=at_s, plan=plan, weighed=plan.candidates, samples=-self._undone))
        self._num += 1
        self._is_standing, self._undone = True, 0

    def _measured(self, decision: _Decision, record: PlanMeasured) -> None:
        if record.generation < decision.plan.generation:
            return
        if record.steps >= decision.measured_steps:
            decision.measured_steps, decision.measured_step_s = record.steps, record.measured_step_s
        if record.estimated_transition_s is not None and record.measured_transition_s is not None:
            decision.measured_transition_s = record.measured_transition_s

    def _close(self, decision: _Decision) -> None:
        """Adds a decision that no longer stands to the sums."""
        num, judged, lost, trained = self._part(decision)
        self._num_others += num
        self._num_judged += judged
        self._lost += lost
        self._trained += trained

    def _part(self, decision: _Decision) -> tuple[int, int, float, float]:
        """Returns what a decision adds: whether it had others to choose from, is judged; samples lost, and trained."""
        found = decision.regret(self._batch)
        others = int(len(decision.weighed) > 1)
        return (others, others, found.lost, decision.samples) if found is not None and others else (others, 0, 0.0, 0.0)

    def rows(self) -> list[dict[str, Any]]:
        """Returns the last decisions in order."""
        return [self._row(decision) for decision in self._kept]

    def total(self) -> dict[str, Any]:
        """Returns the regret of all decisions: `num` of them, `weighed` that had candidates to choose from, of which
        `judged`; `lost` samples, of those that were `trained` under the judged ones."""
        last = self._part(self._kept[-1]) if self._kept else (0, 0, 0.0, 0.0)
        return {
            "num": self._num,
            "weighed": self._num_others + last[0],
            "judged": self._num_judged + last[1],
            "lost": round(self._lost + last[2], 3),
            "trained": round(self._trained + last[3], 3),
        }

    def _row(self, decision: _Decision) -> dict[str, Any]:
        plan, found = decision.plan, decision.regret(self._batch)
        shown = list(range(len(decision.weighed)))[:MOST_CANDIDATES]
        if found is not None and found.best not in shown:
            shown.append(found.best)
        candidates = [
            {
                **msgspec.to_builtins(decision.weighed[at]),
                "would_give": None if found is None else round(found.samples[at], 3),
            }
            for at in shown
        ]
        return {
            "time_s": decision.at_s,
            "step": plan.step,
            "generation": plan.generation,
            "purpose": plan.purpose,
            "policy": plan.policy,
            "reason": plan.reason,
            "estimated_step_s": plan.estimated_step_s,
            "measured_step_s": decision.measured_step_s,
            "transfer_bytes": plan.transfer_bytes,
            "estimated_transition_s": plan.estimated_transition_s,
            "measured_transition_s": decision.measured_transition_s,
            "candidates": candidates,
            "num_candidates": len(decision.weighed),
            "steps": decision.steps,
            "seconds": round(decision.seconds, 6),
            "samples": decision.samples,
            "regret": None if found is None or len(decision.weighed) < 2 else _told(found, decision),
        }


def _told(found: Regret, decision: _Decision) -> dict[str, Any]:
    best = decision.weighed[found.best].name
    return {"factor": round(found.factor, 6), "lost": round(found.lost, 3), "best": best}
