"""What determined a run's samples and learning rates, since which step: recorded in its checkpoints. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

SHUFFLED: Final = "shuffled"
KEYED: Final = "keyed"
"""Orders of samples, see `planaria.data.order`: that of runs from before there was another, and that of new ones."""


class DataIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What determines the samples: two runs with one identity train on the same ones, step by step.

    Attributes:
        content: fingerprint of the token ids, or of the samples.
        tokens: how many there are.
        tokenizer: identity of the tokenizer; "": not known.
        vocab_size: ids are below it.
        sequence_length: tokens of a window.
        mask_probability: share of tokens that a masked language model must predict.
        seed: of the order of windows, and of what is masked.
        order: of the samples. A run keeps the one that it began with.
        eval_share: share of the windows, or of the samples, that are held out.
        unit: what is counted: tokens, the samples of a dataset, or the first samples of a stream.
        packing: how documents come into windows.
        too_long: what was done about a document that no window holds.
        weights: of several sources; none: there is one.
        shuffle_buffer: samples of a stream that are shuffled together; 0: they are no stream's.
    """

    content: str
    tokens: int
    tokenizer: str
    vocab_size: int
    sequence_length: int
    mask_probability: float
    seed: int
    order: str = SHUFFLED
    eval_share: float = 0.0
    unit: str = "tokens"
    packing: str = "across"
    too_long: str = "cut"
    weights: tuple[float, ...] = ()
    shuffle_buffer: int = 0

    def changes(self, now: DataIdentity) -> list[str]:
        """Returns what differs in `now`, for people; empty where the samples are the same."""
        if self.unit != now.unit:
            return [f"the data are {now.unit}, not {self.unit}"]
        found = []
        if self.content != now.content:
            found.append(_growth(self.tokens, now.tokens, now.unit))
        if "" not in (self.tokenizer, now.tokenizer) and self.tokenizer != now.tokenizer:
            found.append("the tokenizer is another")
        for name, what in (
            ("vocab_size", "the vocabulary has {} ids, not {}"),
            ("sequence_length", "windows have {} tokens, not {}"),
            ("mask_probability", "the share of masked tokens is {}, not {}"),
            ("seed", "the seed is {}, not {}"),
            ("eval_share", "the share that is held out is {}, not {}"),
            ("packing", "data.packing is {}, not {}"),
            ("too_long", "data.too_long is {}, not {}"),
            ("weights", "the weights of the sources are {}, not {}"),
            ("shuffle_buffer", "data.shuffle_buffer is {}, not {}"),
        ):
            before, after = getattr(self, name), getattr(now, name)
            if before != after:
                found.append(what.format(after, before))
        return found


def _growth(before: int, now: int, unit: str) -> str:
    if before == now:
        return f"the {now} {unit} are others"
    return f"the data {'grew' if now > before else 'shrank'} from {before} to {now} {unit}"


class JobInterval(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of a run under the same conditions.

    Attributes:
        since: step after which they began; 0: the run's beginning.
        steps: train.steps of these, where the learning rate's schedule ends.
        data: what determined the samples; None: an emulated device, which has none.
    """

    since: int
    steps: int
    data: DataIdentity | None = None


History = tuple[JobInterval, ...]
"""A run's stretches, in order; the last is in force. Empty: not known, of a checkpoint before there were any."""


def order_of(history: Sequence[JobInterval]) -> str:
    """Returns the order in which a run's samples come; that of new runs, if it had none."""
    data = history[-1].data if history else None
    return KEYED if data is None else data.order


def schedule_ends(history: Sequence[JobInterval]) -> tuple[tuple[int, int], ...]:
    """Where the learning rate's schedule ended, since which step."""
    return tuple((stretch.since, stretch.steps) for stretch in history)


def continued(history: Sequence[JobInterval], now: JobInterval) -> History:
    """Returns the history of a run that goes on under `now`: later stretches were never trained, equal ones are one."""
    earlier = tuple(stretch for stretch in history if stretch.since < max(now.since, 1))
    if earlier and (earlier[-1].steps, earlier[-1].data) == (now.steps, now.data):
        return earlier
    return (*earlier, now) if now.since else (now,)
