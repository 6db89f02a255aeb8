"""How long steps take under the plan in force, compared with the estimate; and what may therefore be expected."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass

from planaria.protocol.messages.records import PlanMeasured
from planaria.protocol.thresholds import CALIBRATED_AFTER, MEASURED_STEPS, UNMEASURED_INSTRUCTION_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """Expected seconds of a step and of the longest instruction of the plan in force.

    Estimated, and made longer as the run's steps show that this machine needs longer.
    """

    instruction_s: float
    step_s: float


class StepTimes:
    """Estimated and measured step times, from one plan to the next.

    Attributes:
        step_s: estimated seconds of a step of the plan in force.
        instruction_s: of its longest instruction.
        patience_s: beside what is expected of a step: after a coordinator that died, workers wait for the next one, and
            nobody is to blame for that; while the job waits for nodes, nobody is to blame for what does not come.
        decision_s: that the last decision took of those for which plans were weighed; None: there was none.
        late_s: by how much the first step of the plan that was closed last was longer than its others, the decision
            aside; None: that cannot be seen.
    """

    def __init__(self) -> None:
        self._measured: deque[float] = deque(maxlen=MEASURED_STEPS)
        self._median_s = 0.0
        self.step_s = 0.0
        self.instruction_s = 0.0
        self.patience_s = 0.0
        self.decision_s: float | None = None
        self.late_s: float | None = None
        self._is_weighed = False
        self._transition_s: float | None = None
        self._decided_s = 0.0
        self._beside: tuple[float, float | None] | None = None
        """Seconds (the decision aside) of the step before this plan, beside which its state moved, and the estimate of
        what would pass without gain from then on."""
        self._is_beside = False
        self._estimated_s = 0.0
        """Estimated seconds of a step of the plan in force, when it was taken."""
        self._stretch = 0.0
        """How many times longer than estimated steps took under earlier plans; 0: not known."""

    def expect(
        self,
        step_s: float,
        instruction_s: float,
        *,
        is_weighed: bool = False,
        transition_s: float | None = None,
        is_beside: bool = False,
    ) -> None:
        """Begins measuring a plan with these estimates. For one that was weighed, `transition_s` estimates what passes
        without gain until it runs, or until the one after it does, where it is
        for a step beside which that one's state moves."""
        self._is_beside = is_beside
        self._is_weighed = is_weighed
        self._transition_s = transition_s
        self._decided_s = 0.0
        self.step_s, self.instruction_s = step_s, instruction_s
        self._estimated_s = step_s
        self.patience_s = 0.0

    def decided(self, seconds: float) -> None:
        """Records how long the decision for the plan in force took."""
        self._decided_s = seconds
        if self._is_weighed:
            self.decision_s = seconds

    def took_before(self, duration_s: float) -> None:
        """Records how long the last step took that an earlier coordinator saw committed."""
        if self.step_s > 0:
            self._stretch = max(1.0, duration_s / self.step_s)

    def committed(self, duration_s: float) -> None:
        """Records the duration of a step in which no node was lost."""
        self.patience_s = 0.0
        self._measured.append(duration_s)
        self._median_s = statistics.median(self._measured)

    def calibration(self) -> float | None:
        """Returns the factor for all estimates from now on, applied here to the plan in force; None if too few of its
        steps were measured."""
        if len(self._measured) < CALIBRATED_AFTER or self.step_s <= 0:
            return None
        factor = self._median_s / self.step_s
        self.step_s *= factor
        self.instruction_s *= factor
        return factor

    @property
    def just_measured_s(self) -> float | None:
        """The median of the plan's first steps, once: when there are enough to tell what a step takes."""
        return self._median_s if len(self._measured) == CALIBRATED_AFTER else None

    def close(self, generation: int) -> PlanMeasured | None:
        """Ends the plan's measurements; returns its measured times beside the estimates.

        A transition takes what passes without gain: by so much as the plan's first step, and the one beside which its
        state moved, if there was one, are longer than the plan's steps. The first decision is left out, as in the
        estimate; one after that step is not.
        """
        beside, self._beside, self.late_s = self._beside, None, None
        if not self._measured:
            return None
        if self._is_beside:
            self._beside = self._measured[-1] - self._decided_s, self._transition_s
        self._stretch = self._current_stretch
        usual_s = self._median_s
        first_s = self._measured[0] if 3 <= len(self._measured) < MEASURED_STEPS else None
        transition_s, passed_s = self._transition_s, None
        if first_s is not None:
            passed_s = self.late_s = first_s - usual_s - self._decided_s
            if beside is not None:
                passed_s += beside[0] - usual_s + self._decided_s
                transition_s = beside[1]
        record = PlanMeasured(
            generation=generation,
            steps=len(self._measured),
            estimated_step_s=self._estimated_s,
            measured_step_s=usual_s,
            estimated_transition_s=transition_s,
            measured_transition_s=None if passed_s is None else max(0.0, passed_s),
            decision_s=self._decided_s,
        )
        self._measured.clear()
        return record

    @property
    def expectation(self) -> Expectation:
        stretch = self._current_stretch
        if not stretch:
            # Nothing is known of this machine yet, and first times are slow.
            return Expectation(
                instruction_s=UNMEASURED_INSTRUCTION_S + self.instruction_s,
                step_s=UNMEASURED_INSTRUCTION_S + self.step_s + self.patience_s,
            )
        return Expectation(instruction_s=self.instruction_s * stretch, step_s=self.step_s * stretch + self.patience_s)

    @property
    def expected_step_s(self) -> float:
        """Seconds of a step of the plan in force, as this machine takes it; the estimate if nothing is measured."""
        return self.step_s * self.stretch

    @property
    def stretch(self) -> float:
        """How many times longer than estimated steps take on this machine; not below 1."""
        return max(1.0, self._current_stretch)

    @property
    def _current_stretch(self) -> float:
        if not self._measured or self.step_s <= 0:
            return self._stretch
        return max(1.0, self._median_s / self.step_s)
