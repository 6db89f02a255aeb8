"""Pairs for models with an encoder and a decoder: the prompt is what the encoder reads, the completion is learned."""

from __future__ import annotations

import numpy as np
import torch

from planaria.data.order import Numbers
from planaria.data.reading.sources import DataError
from planaria.data.samples.samples import IGNORED_LABEL, Batch, LeftOut
from planaria.data.tokens.token_set import TokenSet
from planaria.job.sections.data import SOURCE_MASK, DataSection, TooLong


class Translations:
    """Pairs, one a row; see `planaria.data.samples.samples.Samples`.

    Batches have `input_ids`, the prompts, with the mask of what is not filled up; and `labels`, the completions. All
    are int64, of shape (rows, sequence_length). The tokenizer's separator comes after both, if it has one.

    Args:
        tokens: of the pairs.
        section: the job's [data].
        sequence_length: tokens of a prompt, and of a completion.
        field: of the job, that names the source.

    Raises:
        DataError: there is not one pair.
    """

    def __init__(
        self, tokens: TokenSet, section: DataSection, sequence_length: int, field: str = "data.source"
    ) -> None:
        assert tokens.answers is not None
        self.named = f"{field} = {tokens.about.source!r}"
        self.unit = f"pairs of {sequence_length} tokens each"
        self.order = tokens.about.order
        ends = np.asarray(tokens.documents)
        begins = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        answers = ends - np.add.reduceat(tokens.answers, begins, dtype=np.int64)  # what is learned comes last
        self._ending = [tokens.about.separator_id] if section.eos and tokens.about.separator_id is not None else []
        is_too_long = (answers - begins + len(self._ending) > sequence_length) | (ends - answers > sequence_length)
        is_kept = ends > answers
        if section.too_long is TooLong.DROP:
            is_kept &= ~is_too_long
        self.left_out = LeftOut(len(ends), int(is_too_long.sum()), int(len(ends) - is_kept.sum()))
        if not is_kept.any():
            raise DataError(
                f"{self.named} has {len(ends)} pairs, and none has room in {sequence_length} tokens each "
                "(train.sequence_length). Raise it."
            )
        self._tokens = tokens
        self._length = sequence_length
        self._pairs = np.stack([begins, answers, ends], axis=1)[is_kept]
        fillers = (tokens.pad_token_id, tokens.about.separator_id, 0)
        self._filler = next(one for one in fillers if one is not None)

    def __len__(self) -> int:
        return len(self._pairs)

    def batch(self, numbers: Numbers, chance: np.random.Generator) -> Batch:
        shape = len(numbers), self._length
        inputs, labels = np.full(shape, self._filler, np.int64), np.full(shape, IGNORED_LABEL, np.int64)
        is_source = np.zeros(shape, np.int64)
        room = self._length - len(self._ending)
        for row, (begin, answer, end) in enumerate(self._pairs[numbers].tolist()):
            prompt = [*self._tokens.ids[begin : min(answer, begin + room)].tolist(), *self._ending]
            completion = self._tokens.ids[answer : min(end, answer + self._length)]
            inputs[row, : len(prompt)], is_source[row, : max(1, len(prompt))] = prompt, 1
            labels[row, : len(completion)] = completion
        found = {"input_ids": inputs, SOURCE_MASK: is_source, "labels": labels}
        return {name: torch.from_numpy(array) for name, array in found.items()}
