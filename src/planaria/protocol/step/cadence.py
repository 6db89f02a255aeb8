"""When a checkpoint is due beside training: every so many steps, every so many seconds, or as the run finds best.

Left to the run, it is by time. Young (1974) and Daly (2006): of intervals that are short beside the time between losses
M, the one that costs least is sqrt(2 C M), where C is what a checkpoint costs training. Here C is measured: by how much
steps beside which one is written are longer than others. Where losses are so frequent that this would cost more than
1% of the time, the interval is 100 C; and never is it longer than 15 minutes. The first is written after a second, so
that something is measured and saved early; from one to the next the interval at most doubles. Pure: no clock.
"""

from __future__ import annotations

import math
import statistics
from collections import deque

from planaria.plan.thresholds import DEGRADED_SAVES_S
from planaria.protocol.messages.run_measurements import MeasuredSaves
from planaria.protocol.thresholds import (
    CHECKPOINT_SHARE,
    COSTS_KEPT,
    COSTS_SURE,
    FIRST_CHECKPOINT_S,
    LEAST_REST,
    LONGEST_INTERVAL_S,
    UNMEASURED_INTERVAL_S,
)


class Cadence:
    """Decides when one run writes checkpoints.

    Args:
        every: steps between checkpoints; None: not by steps; 0: none on the way.
        every_s: seconds between them; None: not by time; 0: none on the way.

    Attributes:
        is_automatic: the run chooses.
        is_on: checkpoints are written on the way, also under a plan that is not degraded.
    """

    def __init__(self, every: int | None, every_s: float | None) -> None:
        self._every = every or 0
        self._every_s = every_s or 0.0
        self.is_automatic = every is None and every_s is None
        self.is_on = self.is_automatic or bool(self._every or self._every_s)
        self._costs: deque[float] = deque(maxlen=COSTS_KEPT)
        self._usual: deque[float] = deque(maxlen=COSTS_KEPT)
        """Seconds of the last steps beside which nothing was written."""
        self._count = 0
        self._began: float | None = None
        """When the last checkpoint that was written, or failed, was ordered; before the first, when training began."""
        self._ordered_s = 0.0
        self._took_s = 0.0
        self._extra_s: float | None = None
        """Seconds by which the steps beside the last ordered checkpoint were longer so far; None: not measured."""
        self._is_under_way = self._is_copied = False
        self._is_told = False

    @property
    def learnt(self) -> MeasuredSaves:
        """Measured costs of checkpoints, for the next coordinator."""
        return MeasuredSaves(costs_s=tuple(self._costs), count=self._count, began=self._began, took_s=self._took_s)

    def recall(self, learnt: MeasuredSaves) -> None:
        """Takes over what the last coordinator measured."""
        self._costs = deque(learnt.costs_s, maxlen=COSTS_KEPT)
        self._count, self._began, self._took_s = learnt.count, learnt.began, learnt.took_s

    def begin(self, now: float) -> None:
        """Records when training began; later calls change nothing."""
        if self._began is None:
            self._began = now

    def committed(self, duration_s: float) -> None:
        """Records the duration of a step without losses. The first after an order begins with copies of the state."""
        if self._extra_s is None:
            self._usual.append(duration_s)
        elif self._usual:
            self._extra_s += duration_s - statistics.median(self._usual)
            self._is_copied = True
            self._conclude()

    def ordered(self, now: float) -> None:
        """Records that a checkpoint begins to be written beside training."""
        self._ordered_s = now
        self._extra_s = 0.0 if self._usual else None
        self._is_under_way, self._is_copied = True, False

    def written(self, now: float) -> None:
        """Records that a checkpoint is whole or failed; one that all waited for does not move the next."""
        if self._is_under_way:
            self._began, self._took_s = self._ordered_s, now - self._ordered_s
            self._count += 1
            self._is_under_way = False
            self._conclude()

    def given_up(self) -> None:
        """Forgets the checkpoint under way: the next is due as if it had not been ordered."""
        self._is_under_way, self._extra_s = False, None

    def _conclude(self) -> None:
        if self._extra_s is not None and self._is_copied and not self._is_under_way:
            self._costs.append(self._extra_s)
            self._extra_s = None

    @property
    def cost_s(self) -> float:
        """Measured seconds by which a checkpoint makes training longer; 0: not known."""
        return max(0.0, statistics.median(self._costs)) if self._costs else 0.0

    def interval_s(self, time_to_failure_s: float) -> float:
        """Returns the seconds between two checkpoints that the run aims at; 0: they are not by time.

        `time_to_failure_s`: expected seconds from one loss to the next.
        """
        if not self.is_automatic:
            return self._every_s
        if not self._costs:
            return UNMEASURED_INTERVAL_S
        cost_s = self.cost_s
        best_s = max(
            math.sqrt(2 * cost_s * time_to_failure_s),
            cost_s / CHECKPOINT_SHARE,
            LEAST_REST * self._took_s,
            FIRST_CHECKPOINT_S,
        )
        return min(LONGEST_INTERVAL_S, best_s)

    def is_due(self, committed: int, now: float, time_to_failure_s: float, *, is_degraded: bool) -> bool:
        """Returns whether to save the committed step; `is_degraded`: under a plan that lacks replicas."""
        if self._every and committed % self._every == 0:
            return True
        since_s = math.inf if self._began is None else now - self._began
        if self.is_automatic:
            # The first measurements are rough, so the interval grows to what they say step by step.
            wanted_s = min(self.interval_s(time_to_failure_s), FIRST_CHECKPOINT_S * 2.0 ** min(self._count, 20))
            fair_s = self.cost_s / CHECKPOINT_SHARE
            if len(self._costs) < COSTS_SURE:
                fair_s = min(UNMEASURED_INTERVAL_S, fair_s)
            return since_s >= min(LONGEST_INTERVAL_S, max(wanted_s, fair_s, LEAST_REST * self._took_s))
        if self._every_s:
            return since_s >= self._every_s
        if self._every:
            return False
        rest_s = max(DEGRADED_SAVES_S, LEAST_REST * self._took_s) if self._count else 0.0
        return is_degraded and since_s >= rest_s

    def excess(self) -> str | None:
        """Returns, once, a warning where checkpoints cost more than they should and would be too rare otherwise."""
        if not self.is_automatic or self._is_told or len(self._costs) < COSTS_KEPT:
            return None
        share = self.cost_s / LONGEST_INTERVAL_S
        if share <= CHECKPOINT_SHARE:
            return None
        self._is_told = True
        return (
            f"a checkpoint makes training {self.cost_s:.3g} s longer, {share:.1%} of the time with one every "
            f"{LONGEST_INTERVAL_S / 60:.0f} minutes, and not {CHECKPOINT_SHARE:.0%} as wanted. "
            "Set run.checkpoint_every_s for longer intervals"
        )
