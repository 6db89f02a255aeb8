"""The account of simulated runs: where the time went, what came of it, and what it cost. Values and arithmetic only."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from planaria.simulate.traces.trace import HOUR_S


class Prices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prices of a node, in dollars an hour.

    Attributes:
        spot: what nodes cost that may be taken away. 0.918: an EC2 p3.2xlarge, as in Bamboo, section 6.
        on_demand: what those of the reference `on-demand` cost. 3.06 is that paper's too.
        zones: of spot nodes in these zones, where they cost something else.
    """

    spot: float = 0.918
    on_demand: float = 3.06
    zones: dict[str, float] = {}


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """The account of one run over one trace.

    Attributes:
        policy: the policy's name.
        trace: its name.
        seconds: from the beginning to the end of the run, or of the trace.
        samples: trained and never lost again.
        steps: those that were trained and never lost again.
        seconds_by: cause -> seconds; together they are all of them.
        node_hours: of nodes that were there, useful or not.
        cost: dollars.
        losses: nodes that were lost while the job had them.
        loss_times: times at which any were.
        device_losses: devices that were lost alone.
        joins: nodes that came after the beginning.
        survived: what was done (`planaria.simulate.traces.tally.RecoveryKinds`) -> recoveries.
        plans: purpose -> plans that were taken after the first.
        fatal: times when the job went back to a checkpoint.
        waits: times when there were too few nodes.
        moved_bytes: state that moved.
        completed: all samples were trained.
        ended: why the run ended before its time; "": it did not.
        under_way: samples of the step that is under way at the end, by the share of its time that has passed.
        timeline: (seconds, nodes that are there, samples a second) from then on, where it was asked for.
    """

    policy: str
    trace: str
    seconds: float
    samples: float
    steps: int
    seconds_by: dict[str, float]
    node_hours: float
    cost: float
    losses: int
    loss_times: int
    joins: int
    survived: dict[str, int]
    fatal: int
    waits: int
    moved_bytes: int
    completed: bool
    plans: dict[str, int] = {}
    ended: str = ""
    device_losses: int = 0
    under_way: float = 0.0
    timeline: tuple[tuple[float, int, float], ...] = ()

    @property
    def samples_per_s(self) -> float:
        return (self.samples + self.under_way) / self.seconds if self.seconds else 0.0

    @property
    def cost_per_hour(self) -> float:
        """Dollars that the run cost per hour."""
        return self.cost / (self.seconds / HOUR_S) if self.seconds else 0.0

    @property
    def value(self) -> float:
        """Samples a second for a dollar an hour (Bamboo, section 6.1)."""
        return self.samples_per_s / self.cost_per_hour if self.cost_per_hour else 0.0

    @property
    def effective(self) -> float:
        """The share of the time spent on training steps that count."""
        return self.seconds_by.get("training", 0.0) / self.seconds if self.seconds else 0.0

    @property
    def mean_nodes(self) -> float:
        return self.node_hours * HOUR_S / self.seconds if self.seconds else 0.0


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A mean over seeds, and half the width of its 95% confidence interval (0 where there is one run)."""

    mean: float
    half_width: float
    num: int


FIGURES: Mapping[str, Callable[[RunResult], float]] = {
    "samples_per_s": lambda run: run.samples_per_s,
    "effective": lambda run: run.effective,
    "cost_per_hour": lambda run: run.cost_per_hour,
    "value": lambda run: run.value,
    "hours": lambda run: run.seconds / HOUR_S,
    "mean_nodes": lambda run: run.mean_nodes,
    "losses": lambda run: float(run.losses),
    "loss_times": lambda run: float(run.loss_times),
    "device_losses": lambda run: float(run.device_losses),
    "joins": lambda run: float(run.joins),
    "fatal": lambda run: float(run.fatal),
    "waits": lambda run: float(run.waits),
    "steps": lambda run: float(run.steps),
}
"""The figures that are reported of runs, by name."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The summary of several runs of one policy, over one trace or several.

    Attributes:
        policy: the policy's name.
        figures: by their names in `FIGURES`.
        share_by: cause -> mean share of the time.
        survived: mechanism -> mean number of recoveries.
        completed: the share of the runs that trained all samples.
    """

    policy: str
    figures: dict[str, Estimate]
    share_by: dict[str, float]
    survived: dict[str, float]
    completed: float


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one scenario.

    Attributes:
        varied: what differs from the other scenarios of a sweep.
        summaries: one for each policy.
        runs: policy -> its runs, one for each seed.
    """

    varied: dict[str, float]
    summaries: list[Summary]
    runs: dict[str, list[RunResult]]


def summarise(runs: Sequence[RunResult]) -> Summary:
    """Returns means and confidence intervals of at least one run, all of one policy."""
    seconds = sum(run.seconds for run in runs)
    causes: Counter[str] = Counter()
    survived: Counter[str] = Counter()
    for run in runs:
        causes.update(run.seconds_by)
        survived.update(run.survived)
    return Summary(
        policy=runs[0].policy,
        figures={name: estimate([figure(run) for run in runs]) for name, figure in FIGURES.items()},
        share_by={cause: spent / seconds for cause, spent in causes.items()} if seconds else {},
        survived={how: number / len(runs) for how, number in sorted(survived.items())},
        completed=sum(run.completed for run in runs) / len(runs),
    )


def estimate(values: Sequence[float]) -> Estimate:
    """Returns the mean and its interval by Student's t."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Estimate(mean=mean, half_width=0.0, num=len(values))
    error = statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(mean=mean, half_width=_quantile(len(values) - 1) * error, num=len(values))


_QUANTILES = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""The 97.5% quantiles of Student's t for 1 to 10 degrees of freedom."""


def _quantile(freedom: int) -> float:
    if freedom <= len(_QUANTILES):
        return _QUANTILES[freedom - 1]
    z = 1.959964  # Cornish-Fisher's expansion; within 0.1% from 11 degrees of freedom on
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
