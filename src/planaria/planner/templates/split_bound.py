"""The lower bound of all splits' step times: step times are tried until none of the splits can have one.

Whether some split has a model time of at most T is decided exactly but for one thing: the stages before and the stages
after a stage are each taken at their shortest for the number of stages to come, although one split need not have both.
So where no split passes, none has a step time of T or less: a certified lower bound. What passes is a candidate.
"""

from __future__ import annotations

import numpy as np

from planaria.plan.compiled import Work
from planaria.plan.costs.pipeline_time import Floats
from planaria.plan.plan import ScheduleKind
from planaria.plan.thresholds import (
    BOUND_STEPS,
    BRANCH_EVENTS,
    BRANCH_EVENTS_BESIDE_LOOKS,
    BRANCH_LOOKS,
    BUDGET_FOR_BRANCHES,
    BUDGET_OF_LOOK,
    BUDGET_OF_STATE,
    EVENTS_PER_STATE,
    FIRST_BOUND_STEP,
    LARGE_SPLITS_CLOSE,
    LOOKS_IF_LARGE,
    LOOKS_OF_MANY,
    MOST_LOOKS,
    PASSES_FOR_ROUNDS,
    QUICK_STATES,
    ROUNDING,
    SHARE_OF_LOOK,
    SMALL_SHARE_OF_BUDGET,
    SPLIT_BUDGET,
    SPLITS_CLOSE,
)
from planaria.planner.templates.split_dp import DpTables
from planaria.planner.templates.split_looks import Branches, Stretches
from planaria.planner.templates.split_scores import Scores
from planaria.planner.templates.splits import Space, Split


class BoundSearch:
    """Search for the largest step time that no split has; scores the splits that it meets.

    Args:
        space: of splits.
        nodes: whose devices are all used.
        num_microbatches: of the pipeline's step.
        budget: states that it may pass.
        work: that this is part of.
        tables: of the space.
        scores: of splits, of which there is at least one when the search begins.

    Attributes:
        close: how many times the bound a step time may be that is as good as it.
    """

    def __init__(
        self, space: Space, nodes: int, num_microbatches: int, budget: float, work: Work, tables: DpTables,
        scores: Scores,
    ) -> None:  # fmt: skip
        self._space = space
        self._nodes = nodes
        self._num = num_microbatches
        self._budget = budget
        self._work = work
        self._tables = tables
        self._scores = scores
        self._states = float(nodes * space.per_node * space.num_layers * min(nodes * space.per_node, space.num_layers))
        self._stages = nodes * space.per_node if space.counts.tolist() == [1] else None
        quick = self._stages is not None or self._states <= QUICK_STATES
        self.close = SPLITS_CLOSE if quick else LARGE_SPLITS_CLOSE
        most = MOST_LOOKS if budget > SMALL_SHARE_OF_BUDGET * SPLIT_BUDGET else LOOKS_OF_MANY
        large = min(LOOKS_IF_LARGE, int(budget / (BUDGET_OF_LOOK * self._states)))
        self._looks = most if quick or budget > SPLIT_BUDGET else large
        # Where stages run further ahead, stretches are rarely what is slow.
        self._stretched = space.schedule is ScheduleKind.ONE_F_ONE_B
        self._branches = budget >= BUDGET_FOR_BRANCHES * self._states

    def run(self) -> float:
        """Tries step times below the best until no split has one; returns the largest that is known to have none."""
        cap = self._scores.best_s / self._num * (1 + ROUNDING)
        self._before = self._tables.ways(self._space.ahead, cap)
        self._behind = self._tables.ways(self._space.back, cap)
        low = max(float(self._before[-1, -1]), self._num * self._space.least_period_s(self._nodes)) * (1 - ROUNDING)
        low = self._branch(self._planes_descend(low))
        return self._stretches(low) if self._stretched else low

    def _branch(self, low: float) -> float:
        """Raises the lower bound by branch and bound, which sees all but what comes before the last stages."""
        events = BRANCH_EVENTS_BESIDE_LOOKS if self._stretched else BRANCH_EVENTS
        most_events = events * self._budget / SPLIT_BUDGET if self._branches else 0.0
        look: Branches | None = None
        passed = np.inf
        for number in range(BRANCH_LOOKS):
            best = min(passed, self._scores.best_s)
            if best <= low * self.close or most_events <= 0:
                break
            target = best / self.close if number == 0 else (low * best) ** 0.5
            most_events -= EVENTS_PER_STATE * self._states
            before = self._relevant(target)
            if before is None:
                low = target
                continue
            if look is None:
                look = Branches(self._space, self._nodes, self._num, self._work)
            splits, bound_s, events = look.run(target, self.close, before, self._stages, SHARE_OF_LOOK * most_events)
            self._scores.ask(splits)
            most_events -= events
            if bound_s:
                low = max(low, bound_s)
            else:
                passed = target
        return low

    def _stretches(self, low: float) -> float:
        """Raises the lower bound by closer looks at stretches of stages, quicker where there are many stages."""
        passed = np.inf
        for look in range(self._looks):
            best = min(passed, self._scores.best_s)
            if best <= low * self.close:
                break
            target = self._scores.best_s / self.close if look == 0 else (low * best) ** 0.5
            if self._try(target, rounds=2, look=True):
                passed = target
            else:
                low = target
        return low

    def _relevant(self, target_s: float) -> list[Floats] | None:
        """Returns the shortest paths to each state of splits that may take at most `target_s`, if some may."""
        budget = target_s * (1 + ROUNDING)
        whole = self._before + self._behind[::-1, ::-1] <= budget
        behind = self._tables.behind(budget, [np.where(whole, self._before, np.inf)])
        before, split = self._tables.before(budget, behind)
        return None if split is None else before

    def _planes_descend(self, low: float) -> float:
        """Raises the lower bound with the planes only, which are quick but blind for stretches of stages."""
        passed, passes = np.inf, 2 + int(self._budget / self._states)
        first = next(step for least, step in FIRST_BOUND_STEP if passes >= least)
        rounds = 2 if passes > PASSES_FOR_ROUNDS else 1
        for step in BOUND_STEPS[first:]:
            target = self._scores.best_s / max(1 + step, self.close)
            if passes <= 0 or target <= low:
                break
            if target >= passed:
                continue
            passes -= 2 * rounds
            if not self._try(target, rounds):
                low = target
                break
            passed = target
        while passes > 0 and min(passed, self._scores.best_s) > low * self.close:
            middle = (low * min(passed, self._scores.best_s)) ** 0.5
            passes -= 2 * rounds
            if self._try(middle, rounds):
                passed = middle
            else:
                low = middle
        return low

    def _try(self, target_s: float, rounds: int, *, look: bool = False) -> bool:
        """Returns whether a split may have a step time of at most `target_s`; scores one that passes."""
        budget = target_s * (1 + ROUNDING)
        whole = self._before + self._behind[::-1, ::-1] <= budget
        before = [np.where(whole, self._before, np.inf)]
        split: Split | None = None
        for _ in range(rounds):
            behind = self._tables.behind(budget, before)
            before, split = self._tables.before(budget, behind)
            if split is None:
                return False
        assert split is not None
        self._scores.ask([split])
        if self._scores.times[split] <= target_s or not look:
            return True
        stretches = Stretches(self._space, self._nodes, self._num)
        passes, split = stretches.run(budget, behind, self._stages, int(self._budget / BUDGET_OF_STATE))
        if split is not None:
            self._scores.ask([split])
        return passes
