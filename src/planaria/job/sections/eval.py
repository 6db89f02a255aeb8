"""[eval]: how a model is judged on data that it is never trained on."""

from __future__ import annotations

import enum
import math
from typing import Any

import msgspec

from planaria.job.sections.section import Section
from planaria.job.values import at_least, check_config, is_dataset, is_hub_stream, refuse, shown, text


class EvalMetric(enum.StrEnum):
    """What an evaluation tells. `accuracy`: share of the labels that the model thinks the likeliest."""

    LOSS = "loss"
    PERPLEXITY = "perplexity"
    ACCURACY = "accuracy"

    @property
    def rises(self) -> bool:
        """Whether a higher value is better."""
        return self is EvalMetric.ACCURACY


class EvalTarget(Section, frozen=True):
    """[eval.stop_at]

    Attributes:
        metric: loss, perplexity or accuracy.
        value: the run ends at a loss or a perplexity of at most this, or at an accuracy of at least this.
    """

    metric: EvalMetric
    value: float


class EvalSection(Section, frozen=True):
    """[eval]

    How the model does on data that it is never trained on (share or source); see docs/howto/evaluation.md.

    Attributes:
        share: share of the data's windows, or samples, that are held out: the same ones whatever train.seed is,
            scattered over all of them, rounded up to whole microbatches.
        source: as data.source: data of their own.
        config: keyword arguments of that function, beside those of data.config, which they replace.
        every: steps between evaluations; the last step is evaluated too. 0: the model is not evaluated.
        microbatches: of train.microbatch samples, that each evaluation takes; always the same ones.
        metric: by which the best checkpoint is chosen: loss, perplexity or accuracy.
        keep_best: a checkpoint is written at each evaluation, and the best one stays beside the newest ones.
        stop_at: end the run as soon as an evaluation reaches this, for instance {metric = "accuracy", value = 0.9}.
    """

    share: float = 0.0
    source: str = ""
    config: dict[str, Any] = msgspec.field(default_factory=dict)
    every: int = 0
    microbatches: int = 8
    metric: EvalMetric = EvalMetric.LOSS
    keep_best: bool = True
    stop_at: EvalTarget | None = None

    def evaluations_in(self, steps: int, done: int = 0) -> int:
        """Returns how often the model is evaluated in so many steps, of which some are done."""
        if not self.every or done >= steps:
            return 0
        return steps // self.every - done // self.every + (steps % self.every > 0)

    @property
    def has_data(self) -> bool:
        """Whether there is anything to evaluate on."""
        return self.share > 0 or self.source != ""


def check_eval(section: EvalSection) -> None:
    """Refuses an [eval] that cannot be. Raises UserError."""
    if section.source:
        text("eval.source", section.source)
        if is_hub_stream(section.source):
            refuse(
                "eval.source", section.source, "is a stream, which has no end",
                "Give its first rows (rows=N in place of stream=true).",
            )  # fmt: skip
    if not is_dataset(section.source):
        check_config("eval", section.config, section.source)
    if not 0 <= section.share < 1:
        refuse("eval.share", section.share, "is not at least 0 and below 1", "Set for instance 0.01.")
    if section.share and section.source:
        refuse(
            "eval.share", section.share, f"does not go with eval.source = {shown(section.source)}", "Give one of them."
        )
    at_least("eval.every", section.every, 0)
    at_least("eval.microbatches", section.microbatches, 1)
    if section.stop_at is not None:
        if not math.isfinite(section.stop_at.value):
            refuse("eval.stop_at", section.stop_at.value, "is not finite", "Give a finite value.")
        if not section.every:
            refuse("eval.stop_at", section.stop_at.value, "needs evaluations", "Set eval.every to steps.")
