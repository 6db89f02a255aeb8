"""The tally of a run under a script: samples a second over its time, recoveries, lost work. From records alone.

A run that was simulated and one on real processes tell the same records, so both are measured by this. Pure.
"""

from __future__ import annotations

import bisect
import statistics
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from planaria.protocol.messages.records import (
    AnyRecord,
    NodeJoined,
    NodeLost,
    NodeReleased,
    PlanMeasured,
    PlanTaken,
    Recovered,
    Restored,
    RunEnded,
    StepCommitted,
    StepSkipped,
    Waiting,
)

Told = Sequence[tuple[AnyRecord, float]]
"""Records in their order, each with its time in seconds."""

WARM_UP_STEPS = 3
"""Steps that are committed before a script begins: the first ones of fresh processes are slow."""

RESTORED, WAITED = "went back to a checkpoint", "waited for nodes"


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """The estimates of plans' durations, and what they took.

    Attributes:
        plans: how many plans were measured.
        step_error: mean of |estimated / measured - 1| of their steps; None without any.
        transitions_estimated_s, transitions_measured_s: sums over the plans of which both are known.
    """

    plans: int
    step_error: float | None
    transitions_estimated_s: float
    transitions_measured_s: float


class RunTally(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a run.

    Attributes:
        samples_per_s: samples of the steps committed in the window that still stand at its end, over the window. A step
            that is under way at an end of the window counts by the share of its time that is inside.
        window_s: length of the window.
        steps: these samples in whole batches.
        committed: commits in the window, those that were then lost included.
        recoveries: from losses, by what was done.
        mean_pause_s: from a loss to the next commit; None without any.
        restored_steps: committed, lost with the last replica of a layer, and done again.
        rerun_microbatches: of steps that a loss struck.
        dropped_samples: of the whole run, by a policy that may.
        skipped_samples, duplicated_samples: of the whole run; always 0, or there is a defect.
        waits: how often too few nodes were left.
        lost, released: nodes.
        joined: nodes that came after the window's beginning.
        estimate: how true the estimates were.
    """

    samples_per_s: float
    window_s: float
    steps: float
    committed: int
    recoveries: dict[str, int]
    mean_pause_s: float | None
    restored_steps: int
    rerun_microbatches: int
    dropped_samples: int
    skipped_samples: int
    duplicated_samples: int
    waits: int
    lost: int
    released: int
    joined: int
    estimate: Estimate


class Advance:
    """The progress of a run at any time: committed steps that stand, with a share of the one under way.

    Between two commits it grows evenly; where no commit follows, it stands still; when a checkpoint is loaded, it goes
    back.

    Args:
        told: the run's records.
        num_microbatches: of a step; a policy that leaves some out advances by so much less.
    """

    def __init__(self, told: Told, num_microbatches: int = 1) -> None:
        self._times = [told[0][1] if told else 0.0]
        self._steps = [0.0]
        self._is_commit = [False]
        left_out = {0: 0}
        for record, time_s in told:
            match record:
                case StepCommitted(step=step) | StepSkipped(step=step):
                    left_out[step] = record.num_dropped
                    self._add(time_s, step - left_out[step] / num_microbatches, is_commit=True)
                case Restored(to_step=step):
                    self._add(time_s, step - left_out.get(step, 0) / num_microbatches, is_commit=False)
                case _:
                    pass

    def _add(self, time_s: float, step: float, *, is_commit: bool) -> None:
        self._times.append(max(time_s, self._times[-1]))
        self._steps.append(step)
        self._is_commit.append(is_commit)

    def at(self, time_s: float) -> float:
        after = bisect.bisect_right(self._times, time_s)
        if after == 0:
            return 0.0
        before = self._steps[after - 1]
        if after == len(self._times) or not self._is_commit[after] or self._steps[after] <= before:
            return before
        length_s = self._times[after] - self._times[after - 1]
        return before + (self._steps[after] - before) * (time_s - self._times[after - 1]) / length_s

    def step_s(self, began_s: float, ended_s: float) -> float:
        """Returns the median time from one commit to the next, of those that end in the window; 0 without any."""
        times = pairwise(zip(self._times, self._is_commit, strict=True))
        gaps = [
            at_s - before_s for (before_s, _), (at_s, is_commit) in times if is_commit and began_s < at_s <= ended_s
        ]
        return statistics.median(gaps) if gaps else 0.0

    def commits(self, began_s: float, ended_s: float) -> int:
        """Returns the number of commits after `began_s` and up to `ended_s`."""
        return sum(
            is_commit and began_s < time_s <= ended_s
            for time_s, is_commit in zip(self._times, self._is_commit, strict=True)
        )


class RecoveryKinds:
    """The kind of each recovery: the policy's, as the plan taken for it says, or what happened in place of one."""

    def __init__(self) -> None:
        self._kind = ""

    def note(self, record: AnyRecord) -> str | None:
        """Takes the next record; returns the kind of the recovery that it ends, if it ends one."""
        match record:
            case Waiting():
                self._kind = WAITED
            case Restored():
                self._kind = RESTORED
            case PlanTaken(purpose="reconfigure" | "warm up") if not self._kind:
                name = record.candidates[0].name if record.candidates else record.policy
                self._kind = name.partition(" (")[0]  # which pipelines is no other kind
            case Recovered():
                ended, self._kind = self._kind or record.recovery.policy, ""
                return ended
            case NodeLost():
                self._kind = ""
            case _:
                pass
        return None


def begin_of(told: Told) -> float | None:
    """Returns when the script began; None where the run did not come so far."""
    times = (at for record, at in told if isinstance(record, StepCommitted) and record.step >= WARM_UP_STEPS)
    return next(times, None)


def end_of(told: Told, num_steps: float) -> float:
    """Returns when a script of so many steps ended: with the commit of its last one, or with the run."""
    wanted = WARM_UP_STEPS + num_steps
    times = (at for record, at in told if isinstance(record, StepCommitted) and record.step >= wanted)
    return next(times, told[-1][1])


def tally(told: Told, began_s: float, ended_s: float, *, global_batch: int, microbatch: int) -> RunTally:
    """Returns the figures of a run over a window.

    Args:
        told: all records of the run.
        began_s: of the window, on the records' clock.
        ended_s: the end of the window, in seconds.
        global_batch: samples in a step.
        microbatch: samples in a microbatch.
    """
    advance = Advance(told, global_batch // microbatch)
    steps = advance.at(ended_s) - advance.at(began_s)
    records = [record for record, _ in told]
    recoveries = [record.recovery for record in records if isinstance(record, Recovered)]
    ended = [record for record in records if isinstance(record, RunEnded)]
    kinds = RecoveryKinds()
    dropped = [record.num_dropped for record in records if isinstance(record, StepCommitted | StepSkipped)]
    window_s = ended_s - began_s
    return RunTally(
        samples_per_s=steps * global_batch / window_s if window_s > 0 else 0.0,
        window_s=window_s,
        steps=steps,
        committed=advance.commits(began_s, ended_s),
        recoveries=dict(sorted(Counter(kind for kind in map(kinds.note, records) if kind is not None).items())),
        mean_pause_s=statistics.mean(r.resume_ms for r in recoveries) / 1e3 if recoveries else None,
        restored_steps=sum(r.from_step - r.to_step for r in records if isinstance(r, Restored)),
        rerun_microbatches=sum(recovery.microbatches_rerun for recovery in recoveries),
        dropped_samples=max(dropped, default=0) * microbatch,
        skipped_samples=sum(record.skipped_microbatches for record in ended) * microbatch,
        duplicated_samples=sum(record.duplicated_microbatches for record in ended) * microbatch,
        waits=sum(isinstance(record, Waiting) for record in records),
        lost=sum(isinstance(record, NodeLost) for record in records),
        released=sum(isinstance(record, NodeReleased) for record in records),
        joined=sum(isinstance(record, NodeJoined) and time_s > began_s for record, time_s in told),
        estimate=_estimate(records),
    )


def _estimate(records: Sequence[AnyRecord]) -> Estimate:
    measured = [record for record in records if isinstance(record, PlanMeasured)]
    errors = [abs(record.estimated_step_s / record.measured_step_s - 1) for record in measured]
    transitions = [
        (record.estimated_transition_s, record.measured_transition_s)
        for record in measured
        if record.estimated_transition_s is not None and record.measured_transition_s is not None
    ]
    return Estimate(
        plans=len(measured),
        step_error=statistics.mean(errors) if errors else None,
        transitions_estimated_s=sum(estimated for estimated, _ in transitions),
        transitions_measured_s=sum(took for _, took in transitions),
    )


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a picture: a value from each time on, times in seconds since the window began."""

    at_s: tuple[float, ...]
    value: tuple[float, ...]


def throughput(
    told: Told, began_s: float, ended_s: float, *, global_batch: int, microbatch: int, points: int = 240
) -> Curve:
    """Returns samples a second over the window, each the mean over a short time around it (Oobleck, Figure 10).

    The time is a sixtieth of the window, at least two steps.
    """
    advance = Advance(told, global_batch // microbatch)
    length_s = ended_s - began_s
    half_s = min(max(length_s / 60, 2 * advance.step_s(began_s, ended_s)) / 2, length_s / 2)
    at_s, value = [], []
    for point in range(points + 1):
        middle = began_s + length_s * point / points
        low, high = max(began_s, middle - half_s), min(ended_s, middle + half_s)
        at_s.append(middle - began_s)
        value.append(max(0.0, advance.at(high) - advance.at(low)) * global_batch / (high - low))
    return Curve(at_s=tuple(at_s), value=tuple(value))


def live_nodes(told: Told, began_s: float, ended_s: float) -> Curve:
    """Returns how many nodes the job had over the window."""
    changes: list[tuple[float, float]] = [
        (time_s, float(record.live_nodes))
        for record, time_s in told
        if isinstance(record, NodeJoined | NodeLost | NodeReleased)
    ]
    before = [count for time_s, count in changes if time_s <= began_s]
    inside = [(time_s - began_s, count) for time_s, count in changes if began_s < time_s <= ended_s]
    points = [(0.0, before[-1] if before else 0.0), *inside]
    last = [(ended_s - began_s, points[-1][1])]
    return Curve(at_s=tuple(at for at, _ in points + last), value=tuple(count for _, count in points + last))
