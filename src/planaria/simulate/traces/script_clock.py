"""Where a run is in its script. Pure: whoever asks says what time it is."""

from __future__ import annotations

from planaria.protocol.messages.records import AnyRecord, PlanTaken, StepCommitted, StepSkipped
from planaria.simulate.traces.scripts import Clock
from planaria.simulate.traces.tally import WARM_UP_STEPS


class ScriptClock:
    """A run's, by the seconds or by the steps that have passed since the script began."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_s: float | None = None
        self._committed = 0
        self._committed_at_s = 0.0
        self._step_s = 0.0

    def note(self, record: AnyRecord, now_s: float) -> None:
        """Take what the run tells, and when it told it, in monotonic seconds."""
        match record:
            case StepCommitted() | StepSkipped():
                self._committed = max(self._committed, record.step)
                self._committed_at_s = now_s
                if self._began_s is None and record.step >= WARM_UP_STEPS:
                    self._began_s = now_s
            case PlanTaken():
                self._step_s = record.estimated_step_s
            case _:
                pass

    def at(self, now_s: float) -> float | None:
        """Seconds or steps since the script began; None before. Of the step under way, the share that its plan's
        estimate says."""
        if self._began_s is None:
            return None
        if self._clock is Clock.SECONDS:
            return now_s - self._began_s
        share = (now_s - self._committed_at_s) / self._step_s if self._step_s > 0 else 0.0
        return self._committed - WARM_UP_STEPS + min(share, 0.999)

    def left_s(self, at: float, now_s: float) -> float | None:
        """Seconds until then, as it seems now; None where that cannot be said."""
        here = self.at(now_s)
        if here is None:
            return None
        return (at - here) * (1.0 if self._clock is Clock.SECONDS else self._step_s)
