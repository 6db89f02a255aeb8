"""Schedule kinds: in which order a worker runs the forwards and backwards of a step.

A kind is a line of the enum, with its order in numbers: whoever makes, estimates or searches for orders asks these.
"""

from __future__ import annotations

import enum
from typing import Self


class ScheduleKind(enum.StrEnum):
    """Orders in which a worker runs the forwards and backwards of a step: a name, then how it differs from others.

    Attributes:
        warm_up: forwards ahead of the backwards, for each later stage; None: all forwards come first.
        weights_lag: backwards ahead of the weight gradients, for each earlier stage; None: backwards are whole.
    """

    _value_: str
    warm_up: int | None
    weights_lag: int | None

    def __new__(cls, name: str, warm_up: int | None = None, weights_lag: int | None = None) -> Self:
        kind = str.__new__(cls, name)
        kind._value_, kind.warm_up, kind.weights_lag = name, warm_up, weights_lag
        return kind

    ONE_F_ONE_B = "1f1b", 1
    EAGER_ONE_F_ONE_B = "eager-1f1b", 2
    """1F1B with twice the warm-up, so that no stage waits for a message: sends travel while the next microbatch is
    computed (Zhuang et al., MLSys 2023, section 4). A stage k from the end keeps 2k + 1 microbatches, not k + 1."""
    GPIPE = "gpipe"
    ZERO_BUBBLE_H1 = "zb-h1", 1, 1
    """1F1B with split backwards: a stage sends the gradient of its input at once and computes the gradients of its
    weights later, where it would wait (Qi et al., ICLR 2024, schedule ZB-H1). A bubble takes F + B - W for each stage
    after the first, not F + B + W. Every stage keeps as many microbatches as 1F1B's first one."""
    ZERO_BUBBLE_H2 = "zb-h2", 2, 2
    """ZB-H1 with twice the warm-up, and weights' gradients twice as late: messages hide, and a bubble takes F + B - 2 W
    or F, whichever is more (Qi et al., ICLR 2024, schedule ZB-H2; what they fill beyond that belongs to the next step,
    which begins here only once this one is committed). Of S stages every one keeps 2 S - 1 microbatches."""

    @property
    def splits_backward(self) -> bool:
        """Whether the gradients of a stage's weights are computed apart from the gradient of its input."""
        return self.weights_lag is not None

    def forwards_ahead(self, stages_after: int, num_microbatches: int) -> int:
        """Returns how many forwards a stage runs before its first backward may follow the next forward."""
        return num_microbatches if self.warm_up is None else min(self.warm_up * stages_after, num_microbatches)

    def weights_behind(self, stages_before: int) -> int:
        """Returns how many backwards of later microbatches a stage runs before a microbatch's weight gradients."""
        return (self.weights_lag or 0) * stages_before

    def in_flight(self, stages_after: int, num_microbatches: int, stages_before: int = 0) -> int:
        """Returns the most microbatches of which a stage keeps the activations: from the forward to the end of the
        backward, which is the weight gradients where backwards are split. Only then do `stages_before` matter."""
        ahead = self.forwards_ahead(stages_after, num_microbatches)
        return min(ahead + 1 + self.weights_behind(stages_before), num_microbatches)
