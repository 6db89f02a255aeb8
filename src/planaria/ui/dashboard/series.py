"""Any number of steps in a bounded number of points: where they are too many, each two neighbours become one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from planaria.runtime.run_folder.step_blocks import StepBlock
from planaria.runtime.run_folder.step_lines import StepLine

MOST_POINTS: Final = 1200
"""Most points of a series: about one a pixel of a chart."""


@dataclass(slots=True, kw_only=True)
class Point:
    """The steps of one point: their number, sums of what is shown as a mean, and the range of losses.

    Attributes:
        count: of steps.
        step: the last one.
        time_s: when it was committed.
        num_losses: of steps that have a finite loss.
        loss: sum of their losses.
        low: least of them.
        high: greatest of them.
        tokens_per_s: sum over the steps.
        expected: sum of the plan's estimates of the same.
        nodes: alive after the last step.
        cost: dollars by then.
        samples: trained by then.
    """

    count: int
    step: int
    time_s: float
    num_losses: int
    loss: float
    low: float
    high: float
    tokens_per_s: float
    expected: float
    nodes: int
    cost: float = 0.0
    samples: int = 0

    @classmethod
    def of(cls, steps: Sequence[StepLine], began_s: float, plan_step_s: float) -> Point:
        """Makes the point of some steps, at least one; what they cost is left out.

        Args:
            steps: in order.
            began_s: when the run began, as the steps' times.
            plan_step_s: the plan's estimate of a step; 0: there is none.
        """
        last = steps[-1]
        losses = [step.loss for step in steps if step.loss is not None and math.isfinite(step.loss)]
        tokens = sum([step.tokens_per_s * step.duration_s for step in steps])
        return cls(
            count=len(steps),
            step=last.step,
            time_s=last.time - began_s,
            num_losses=len(losses),
            loss=sum(losses),
            low=min(losses, default=0.0),
            high=max(losses, default=0.0),
            tokens_per_s=sum([step.tokens_per_s for step in steps]),
            expected=tokens / plan_step_s if plan_step_s else 0.0,
            nodes=last.live_nodes,
        )

    @classmethod
    def of_block(cls, block: StepBlock, began_s: float, plan_step_s: float) -> Point:
        """Makes the point of a block of steps; the rest as `of`."""
        return cls(
            count=block.count,
            step=block.step,
            time_s=block.time - began_s,
            num_losses=block.num_losses,
            loss=block.loss,
            low=block.low,
            high=block.high,
            tokens_per_s=block.tokens_per_s,
            expected=block.tokens / plan_step_s if plan_step_s else 0.0,
            nodes=block.live_nodes,
        )

    def absorb(self, later: Point) -> None:
        """Adds the steps of the point after it."""
        if later.num_losses:
            self.low = min(self.low, later.low) if self.num_losses else later.low
            self.high = max(self.high, later.high) if self.num_losses else later.high
        self.count += later.count
        self.step, self.time_s, self.nodes = later.step, later.time_s, later.nodes
        self.cost, self.samples = later.cost, later.samples
        self.num_losses += later.num_losses
        self.loss += later.loss
        self.tokens_per_s += later.tokens_per_s
        self.expected += later.expected

    def row(self) -> list[Any]:
        """Returns step, time, loss, its least and greatest, tokens per second, those expected, live nodes, cost and
        samples so far."""
        has = self.num_losses > 0
        return [
            self.step,
            round(self.time_s, 3),
            _short(self.loss / self.num_losses) if has else None,
            _short(self.low) if has else None,
            _short(self.high) if has else None,
            _short(self.tokens_per_s / self.count),
            _short(self.expected / self.count),
            self.nodes,
            _short(self.cost),
            self.samples,
        ]


class Series:
    """Steps in order, as at most MOST_POINTS points.

    Attributes:
        epoch: changes when points that were given out are no longer true.
    """

    def __init__(self) -> None:
        """Makes one without steps."""
        self.epoch = 0
        self._points: list[Point] = []
        self._stride = 1

    def __len__(self) -> int:
        return len(self._points)

    def add(self, steps: Sequence[StepLine], point_of: Callable[[Sequence[StepLine]], Point]) -> None:
        """Adds steps after the others; `point_of` makes the point of some of them, asked in their order."""
        at = 0
        while at < len(steps):
            some = steps[at : at + self._room()]
            self.add_point(point_of(some))
            at += len(some)

    def add_point(self, point: Point) -> None:
        """Adds the steps of a point after the others. One of more steps than others have is not cut."""
        self._room()
        if self._points and self._points[-1].count < self._stride:
            self._points[-1].absorb(point)
        else:
            self._points.append(point)

    def _room(self) -> int:
        """Makes room for steps, and returns for how many in one point."""
        while True:
            if self._points and self._points[-1].count < self._stride:
                return self._stride - self._points[-1].count
            if len(self._points) < MOST_POINTS:
                return self._stride
            self._halve()

    def forget_after(self, step: int) -> None:
        """Forgets the points with later steps, which are trained again."""
        kept = [point for point in self._points if point.step <= step]
        if len(kept) < len(self._points):
            self._points = kept
            self.epoch += 1

    def rows(self, first: int = 0) -> list[list[Any]]:
        """Returns the points from the one with this number on; see `Point.row`."""
        return [point.row() for point in self._points[first:]]

    def _halve(self) -> None:
        self._stride *= 2
        self.epoch += 1
        halved: list[Point] = []
        for at, point in enumerate(self._points):
            if at % 2:
                halved[-1].absorb(point)
            else:
                halved.append(point)
        self._points = halved


def _short(value: float) -> float:
    """Returns six digits of a number: more cannot be drawn."""
    return float(f"{value:.6g}")
