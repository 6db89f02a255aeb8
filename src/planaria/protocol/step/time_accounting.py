"""Where a run's time went (useful, redone, recovering, waiting), from its records and their times alone.

The split of Bamboo's Figure 3 (training made progress; progress that was then wasted; restarting), for any policy.
"""

from __future__ import annotations

import bisect
import operator
import statistics
from array import array
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from planaria.protocol.messages.records import (
    DeviceLost,
    NodeLost,
    PlanMeasured,
    PlanTaken,
    Record,
    Recovered,
    Recovery,
    Restored,
    RunEnded,
    StepCommitted,
    StepSkipped,
    Waiting,
)
from planaria.protocol.thresholds import USUAL_STEPS


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a run by cause; together, the time from the first record to the last.

    Attributes:
        useful: of steps that count.
        redone: of steps, whole or begun, that were trained again.
        recovering: from faults to the work that goes on, and changes of plans.
        waiting: for nodes, when too few were left.
        other: the start, the end, and what lies between steps.
    """

    useful: float
    redone: float
    recovering: float
    waiting: float
    other: float


class _Struck(msgspec.Struct):
    """A step that a loss struck; once committed, the recovery's beginning and end are known."""

    begun_s: float
    fault_at: float
    went_back: bool = False
    step: int = 0
    committed_at: float = 0.0
    waited_s: float = 0.0
    """Seconds from the first fault to `fault_at`, where the job waited or committed the step in between."""


class _UsefulSteps:
    """Seconds of the steps that count, by step: two numbers for each, and their sum.

    Attributes:
        seconds: of all of them.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._steps = array("q")
        self._each_s = array("d")

    def __bool__(self) -> bool:
        return bool(self._steps)

    @property
    def last(self) -> int:
        """The last step that counts; there is one."""
        return self._steps[-1]

    def put(self, step: int, seconds: float) -> None:
        """Notes a step, or other seconds of one."""
        if not self._steps or step > self._steps[-1]:
            at = len(self._steps)
        else:
            at = bisect.bisect_left(self._steps, step)
        if at < len(self._steps) and self._steps[at] == step:
            self.seconds -= self._each_s[at]
            self._each_s[at] = seconds
        else:
            self._steps.insert(at, step)
            self._each_s.insert(at, seconds)
        self.seconds += seconds

    def put_all(self, steps: Sequence[int], seconds: Sequence[float]) -> None:
        """Notes steps, each later than the one before."""
        if self._steps and steps[0] <= self._steps[-1]:
            for step, one_s in zip(steps, seconds, strict=True):
                self.put(step, one_s)
            return
        self._steps.extend(steps)
        self._each_s.extend(seconds)
        self.seconds += sum(seconds)

    def of(self, step: int) -> float:
        """Returns the seconds of a step that counts."""
        return self._each_s[bisect.bisect_left(self._steps, step)]

    def take_after(self, step: int) -> Sequence[float]:
        """Returns the seconds of later steps, which do not count any more."""
        at = bisect.bisect_right(self._steps, step)
        taken = self._each_s[at:]
        del self._steps[at:], self._each_s[at:]
        if taken:
            self.seconds = sum(self._each_s)
        return taken


class TimeAccount:
    """Accounts for the time of one run. Give it every record with its time, in order."""

    def __init__(self, records: Iterable[tuple[Record, float]] = ()) -> None:
        self.steps_redone = 0
        self._began: float | None = None
        self._gaps_s = 0.0
        self._mark = 0.0
        self._last = 0.0
        self._useful = _UsefulSteps()
        self._usual: deque[float] = deque(maxlen=USUAL_STEPS)
        self._redone_s = self._recovering_s = self._waiting_s = 0.0
        self._struck: _Struck | None = None
        self._is_waiting = False
        self._has_ended = False
        for record, at in records:
            self.note(record, at)

    def note(self, record: Record, at: float) -> None:
        """Takes a record with the time, in seconds, at which it was told."""
        if self._began is None:
            self._began = self._mark = at
        elif self._has_ended:  # the run was resumed: what lies between is nobody's time
            self._gaps_s += at - self._last
            self._mark, self._has_ended = at, False
        self._last = at
        match record:
            case StepCommitted(step=step, duration_s=duration_s) | StepSkipped(step=step, duration_s=duration_s):
                self._committed(step, duration_s, at)
            case NodeLost() | DeviceLost():
                self._lost(at - (record.detect_ms or 0.0) / 1e3)
            case Restored():
                self._went_back(record.to_step)
            case Recovered():
                self._recovered(record.recovery)
            case Waiting():
                self._recovering_s += at - self._mark
                self._mark, self._is_waiting = at, True
            case PlanTaken():
                self._planned(record, at)
            case PlanMeasured(measured_transition_s=float(seconds)) if self._useful:
                self._recovering_s += self._taken_from(self._useful.last, seconds)
            case RunEnded():
                self._end(at)
            case _:
                pass

    def note_steps(self, steps: Sequence[int], durations_s: Sequence[float], at: Sequence[float]) -> None:
        """Takes committed steps, with what each took and when it was told, after a record that was of a step, too."""
        self._settle()
        gaps_s = map(operator.sub, at, (self._mark, *at[:-1]))
        useful_s = list(map(min, durations_s, gaps_s))
        self._useful.put_all(steps, useful_s)
        self._usual.extend(useful_s[-USUAL_STEPS:])
        self._mark = self._last = at[-1]

    def note_block(self, last: int, count: int, useful_s: float, at: float) -> None:
        """Takes so many committed steps up to `last`, told at `at`, after a record that was of a step, too.

        Each counts with their mean of what is useful.
        """
        self._settle()
        each_s = [useful_s / count] * count
        self._useful.put_all(range(last - count + 1, last + 1), each_s)
        self._usual.extend(each_s[-USUAL_STEPS:])
        self._mark = self._last = at

    @property
    def split(self) -> Split:
        """The account up to the last record."""
        whole = 0.0 if self._began is None else self._last - self._began - self._gaps_s
        useful = self._useful.seconds
        known = useful + self._redone_s + self._recovering_s + self._waiting_s
        return Split(
            useful=useful,
            redone=self._redone_s,
            recovering=self._recovering_s,
            waiting=self._waiting_s,
            other=max(0.0, whole - known),
        )

    def _committed(self, step: int, duration_s: float, at: float) -> None:
        self._settle()
        if self._struck is not None:
            self._struck.step, self._struck.committed_at = step, at
        else:
            useful_s = min(duration_s, at - self._mark)
            self._useful.put(step, useful_s)
            self._usual.append(useful_s)
        self._mark = at

    def _lost(self, fault_at: float) -> None:
        """Begins the account of a loss, unless one is open already."""
        self._settle()
        if self._struck is None and not self._is_waiting:
            fault_at = max(self._mark, fault_at)
            self._struck = _Struck(begun_s=fault_at - self._mark, fault_at=fault_at)
            self._mark = fault_at

    def _went_back(self, to_step: int) -> None:
        struck = self._struck
        if struck is not None and struck.step:  # it was committed in spite of the loss, and is undone all the same
            self._settle()
            gone_s = struck.waited_s + struck.committed_at - struck.fault_at
            self._struck = _Struck(begun_s=0.0, fault_at=struck.committed_at, went_back=True, waited_s=gone_s)
        elif struck is not None and not struck.went_back:
            self._redone_s += struck.begun_s
            struck.went_back = True
        self._undo(to_step)

    def _undo(self, to_step: int) -> None:
        undone = self._useful.take_after(to_step)
        self._redone_s += sum(undone)
        self.steps_redone += len(undone)

    def _recovered(self, recovery: Recovery) -> None:
        struck, self._struck = self._struck, None
        if struck is None or not struck.step:
            return
        after_s = struck.committed_at - struck.fault_at
        if struck.went_back:
            lost_s = min(after_s, max(0.0, (recovery.ready_ms or 0.0) / 1e3 - struck.waited_s))
            self._useful.put(struck.step, after_s - lost_s)
        else:
            whole_s = struck.begun_s + after_s
            usual_s = statistics.median(self._usual) if self._usual else whole_s
            lost_s = max(0.0, whole_s - usual_s)
            self._useful.put(struck.step, whole_s - lost_s)
        self._recovering_s += lost_s

    def _settle(self) -> None:
        """Closes the account of a loss after which a step was committed without any recovery."""
        struck = self._struck
        if struck is not None and struck.step:
            self._useful.put(struck.step, struck.begun_s + struck.committed_at - struck.fault_at)
            self._struck = None

    def _planned(self, record: PlanTaken, at: float) -> None:
        if self._is_waiting:
            self._waiting_s += at - self._mark
            self._mark, self._is_waiting = at, False
            if self._struck is not None and not self._struck.step:
                self._struck.waited_s += at - self._struck.fault_at
                self._struck.fault_at = at
        if record.purpose == "start":
            self._mark = at
            self._undo(record.step - 1)

    def _taken_from(self, step: int, seconds: float) -> float:
        whole_s = self._useful.of(step)
        taken = min(seconds, whole_s)
        self._useful.put(step, whole_s - taken)
        return taken

    def _end(self, at: float) -> None:
        """Closes the account at the run's end: what a loss left of an uncommitted step is no gain."""
        self._settle()
        if self._is_waiting:
            self._waiting_s += at - self._mark
        elif self._struck is not None:
            self._redone_s += 0.0 if self._struck.went_back else self._struck.begun_s
            self._recovering_s += at - self._mark
        self._struck, self._is_waiting, self._has_ended, self._mark = None, False, True, at
