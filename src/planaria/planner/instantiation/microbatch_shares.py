"""Batch distribution: how many of a step's microbatches each pipeline gets; and batches that cannot be dealt out.

Source: Oobleck, section 4.2.2. The batch is never changed: where it does not suit the pipelines, the error recommends
the nearest that do.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from planaria.plan.costs.pipeline_time import Times
from planaria.plan.plan import PlanError
from planaria.plan.settings import PlannerSettings


class Distribution(enum.StrEnum):
    """Objectives by which the shares of a batch are chosen."""

    MINMAX = "minmax"
    """The slowest pipeline ends as early as it can: the shortest step. Exact."""
    EQ6 = "eq6"
    """The paper's Eq. 6: the least variance of N_i T_i, with T_i the time of one microbatch. Exact too, for comparison.

    T_i counts a pipeline's fill and drain once for every microbatch, so deep pipelines get too few. Steps are slower
    by 21% on average (quartiles 5% and 26%) where templates are instantiated best on 8 to 32 nodes, and by 48% (16% and
    61%) for pipelines of any templates. With the period for T_i it would be 0.2%.
    """


class Undistributable(PlanError):
    """Error for a batch that the pipelines cannot share.

    Attributes:
        num_microbatches: in a step, or None where the batch is no whole number of them.
        below: the nearest smaller batch that can be shared, or None where no smaller one can.
        above: the nearest larger one.
        microbatch: samples in a microbatch; `below` and `above` are in samples, or in microbatches where it is None.
    """

    def __init__(
        self,
        what: str,
        *,
        num_microbatches: int | None,
        below: int | None,
        above: int,
        microbatch: int | None = None,
        remedy: str = "or make the microbatch smaller.",
        field: str = "",
    ) -> None:
        self.num_microbatches = num_microbatches
        self.below = below
        self.above = above
        self.microbatch = microbatch
        self._what = what
        self._remedy = remedy
        nearest = f"{above}" if below is None else f"{below} or {above}"
        if field:
            super().__init__(f"{what} Set {field} = {nearest}, {remedy}")
            return
        unit = "microbatches" if microbatch is None else "samples"
        batches = "batch that works is" if below is None else "batches that work are"
        super().__init__(f"{what} The nearest global {batches} {nearest} {unit}; {remedy}")

    def told_by(self, field: str, microbatch: int) -> Undistributable:
        """Returns the same error, naming the field of the global batch and the value to set it to, in samples."""
        scale = microbatch if self.microbatch is None else 1
        return Undistributable(
            self._what,
            num_microbatches=self.num_microbatches,
            below=None if self.below is None else scale * self.below,
            above=scale * self.above,
            microbatch=microbatch,
            remedy=self._remedy,
            field=field,
        )


@contextmanager
def batches_told_by(field: str, microbatch: int) -> Iterator[None]:
    """Makes errors for a batch that cannot be shared name this field, in samples."""
    try:
        yield
    except Undistributable as error:
        raise error.told_by(field, microbatch) from None


def check_batch(num_pipelines: int, num_microbatches: int) -> None:
    """Raises an error unless each pipeline gets a microbatch.

    Raises:
        Undistributable: it does not.
    """
    if num_microbatches < num_pipelines:
        raise Undistributable(
            f"{num_pipelines} pipelines need at least {num_pipelines} microbatches, and a step has {num_microbatches}.",
            num_microbatches=num_microbatches,
            below=None,
            above=num_pipelines,
        )


def microbatches_of(global_batch: int, microbatch: int, num_pipelines: int = 1) -> int:
    """Returns the number of microbatches of a global batch that `num_pipelines` pipelines are to share.

    Raises:
        Undistributable: it is no whole number of them, or too few for the pipelines; with the nearest batches, in
            samples.
    """
    whole, left = divmod(global_batch, microbatch)
    if not left and whole >= num_pipelines:
        return whole
    above = max(whole + bool(left), num_pipelines)
    what = (
        f"A global batch of {global_batch} samples is no whole number of microbatches of {microbatch}."
        if left
        else f"{num_pipelines} pipelines need at least {num_pipelines} microbatches of {microbatch}, and a global "
        f"batch of {global_batch} samples has {whole}."
    )
    raise Undistributable(
        what,
        num_microbatches=None if left else whole,
        below=whole * microbatch if left and whole >= num_pipelines else None,
        above=above * microbatch,
        microbatch=microbatch,
    )


def distribute(
    times: Sequence[Times], num_microbatches: int, objective: Distribution = Distribution.MINMAX
) -> tuple[int, ...]:
    """Returns the number of microbatches for each pipeline, at least one each.

    Args:
        times: for each pipeline, seconds with 1, 2, ... `num_microbatches` microbatches.
        num_microbatches: to be dealt out.
        objective: what is made least.

    Raises:
        Undistributable: fewer microbatches than pipelines.
    """
    check_batch(len(times), num_microbatches)
    match objective:
        case Distribution.MINMAX:
            return _earliest(times, num_microbatches)
        case Distribution.EQ6:
            return least_variance([float(time[0]) for time in times], num_microbatches)


def shares_of(times: Sequence[Times], settings: PlannerSettings) -> tuple[int, ...]:
    """Returns a job's microbatches dealt out to its pipelines, by what its templates are made for.

    Args:
        times: see `distribute`.
        settings: what the job asks of its plans.

    Raises:
        Undistributable: fewer microbatches than pipelines.
    """
    objective = Distribution.EQ6 if settings.is_oobleck else Distribution.MINMAX
    return distribute(times, settings.num_microbatches, objective)


def _earliest(times: Sequence[Times], num_microbatches: int) -> tuple[int, ...]:
    """Returns the shares for the shortest step: extra microbatches go to the smallest times, the first pipelines among
    equals. Optimal, as giving each to the pipeline that would end first is for the maximum of rising functions."""
    extra = num_microbatches - len(times)
    counts = np.ones(len(times), dtype=np.int64)
    if extra:
        kinds = {id(time): time for time in times}  # of hundreds of pipelines, most are of a few templates
        numbers = {kind: number for number, kind in enumerate(kinds)}
        kind_of = np.array([numbers[id(time)] for time in times])
        ends, last = _smallest(list(kinds.values()), np.bincount(kind_of), extra)
        counts += (ends < last).sum(axis=1)[kind_of]
        ties = (ends == last).sum(axis=1)[kind_of]
        left = extra - int(counts.sum() - len(times))
        counts += np.clip(left - (np.cumsum(ties) - ties), 0, ties)
    return tuple(counts.tolist())


def _smallest(kinds: Sequence[Times], many: npt.NDArray[np.int64], extra: int) -> tuple[Times, float]:
    """Returns each kind's times for a microbatch more than one, as many as may be among the `extra` smallest of all,
    and the largest of those. There are so `many` of each kind."""
    width = min(extra, 2 * -(-extra // int(many.sum())) + 8)
    while True:
        ends = np.stack([time[1 : width + 1] for time in kinds])
        order = ends.argsort(axis=None)
        so_far = many[order // width].cumsum()
        last = float(ends.flat[order[so_far.searchsorted(extra)]])
        if width == extra or last < float(ends[:, -1].min()):
            return ends, last
        width = min(extra, 4 * width)


def least_variance(latencies_s: Sequence[float], num_microbatches: int) -> tuple[int, ...]:
    """Returns shares N_i >= 1 with the least variance of N_i T_i (Oobleck, Eq. 6), exactly.

    The variance is the least, over c, of the sum of (N_i T_i - c)^2. For one c that sum is separable and convex in
    the shares, so shares are best when moving one microbatch from a pipeline to another gains nothing. As c rises,
    moves to pipelines of larger T become worth their while one after another; this walks through all of them.

    Args:
        latencies_s: T_i, the time of one microbatch.
        num_microbatches: the sum of the shares.

    Raises:
        Undistributable: fewer microbatches than pipelines.
    """
    check_batch(len(latencies_s), num_microbatches)
    latency = np.array(latencies_s, dtype=np.float64)
    counts = _least_squares(latency, num_microbatches)
    best, least = counts.copy(), float(np.var(counts * latency))
    wider = latency[None, :] - latency[:, None]
    while True:
        taken = np.where(counts > 1, latency**2 * (2 * counts - 1), -np.inf)
        given = latency**2 * (2 * counts + 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            due = np.where(wider > 0, (given[None, :] - taken[:, None]) / (2 * wider), np.inf)
        source, target = np.unravel_index(int(np.argmin(due)), due.shape)
        if due[source, target] > num_microbatches * latency.max() / len(latency):  # No mean is that large.
            return tuple(int(count) for count in best)
        counts[source] -= 1
        counts[target] += 1
        variance = float(np.var(counts * latency))
        if variance < least:
            best, least = counts.copy(), variance


def _least_squares(latency: Times, num_microbatches: int) -> npt.NDArray[np.int64]:
    """Returns the shares with the least sum of (N_i T_i)^2: each microbatch goes where it adds least."""
    counts = np.ones(len(latency), dtype=np.int64)
    for _ in range(num_microbatches - len(latency)):
        counts[np.argmin(latency**2 * (2 * counts + 1))] += 1
    return counts
