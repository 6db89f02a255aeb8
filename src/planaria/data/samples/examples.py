"""Windows of whole documents, filled up: chats, pairs, or texts; what is no answer has no label.

A window has one document, or as many as it has room for, in their order. Which those are is a function of the tokens
and the settings alone, computed where the data are opened.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from planaria.data.order import Numbers
from planaria.data.reading.sources import DataError
from planaria.data.samples.samples import IGNORED_LABEL, Batch, LeftOut
from planaria.data.tokens.token_set import TokenSet
from planaria.job.sections.data import DOCUMENT_POSITIONS, DataSection, Packing, TooLong

_COUNTED_TOKENS = 1 << 24


class Examples:
    """Windows of whole documents; see `planaria.data.samples.samples.Samples`.

    Batches have `input_ids` and `labels`, int64, of shape (rows, sequence_length), and where several documents are in a
    window, the positions of each document's tokens within it.

    Args:
        tokens: what is cut, with the documents' ends.
        section: the job's [data].
        sequence_length: inputs of a window.
        field: of the job, that names the source.

    Raises:
        DataError: there is not one window.
    """

    def __init__(
        self, tokens: TokenSet, section: DataSection, sequence_length: int, field: str = "data.source"
    ) -> None:
        self.named = f"{field} = {tokens.about.source!r}"
        self.unit = f"windows of {sequence_length} tokens"
        self.order = tokens.about.order
        ends = np.asarray(tokens.documents)
        begins = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        taken = np.minimum(ends - begins, sequence_length + 1)
        is_too_long = ends - begins > taken
        is_kept = _are_learned(tokens, begins, taken)
        if section.too_long is TooLong.DROP:
            is_kept &= ~is_too_long
        self.left_out = LeftOut(len(ends), int(is_too_long.sum()), int(len(ends) - is_kept.sum()))
        if not is_kept.any():
            raise DataError(
                f"{self.named} has {len(ends)} documents, and no window has an answer of any: the longest has "
                f"{int((ends - begins).max())} tokens, and train.sequence_length is {sequence_length}. Raise it."
            )
        self._tokens = tokens
        self._length = sequence_length
        self._are_apart = section.windows is Packing.APART
        self._begins, self._sizes = begins[is_kept], taken[is_kept]
        self._firsts = _packed(self._sizes - 1, sequence_length) if self._are_apart else np.arange(len(self._sizes))
        fillers = (tokens.pad_token_id, tokens.about.separator_id, 0)
        self._filler = next(one for one in fillers if one is not None)

    def __len__(self) -> int:
        return len(self._firsts)

    def batch(self, numbers: Numbers, chance: np.random.Generator) -> Batch:
        shape = len(numbers), self._length
        inputs, labels = np.full(shape, self._filler, np.int64), np.full(shape, IGNORED_LABEL, np.int64)
        positions = np.zeros(shape, np.int64)
        for row, number in enumerate(numbers.tolist()):
            at = 0
            for begin, size in self._documents(number):
                here = slice(at, at + size - 1)
                ids = self._tokens.ids[begin : begin + size]
                inputs[row, here], labels[row, here] = ids[:-1], ids[1:]
                if (answers := self._tokens.answers) is not None:
                    labels[row, here][answers[begin + 1 : begin + size] == 0] = IGNORED_LABEL
                positions[row, here] = np.arange(size - 1)
                at += size - 1
            positions[row, at:] = np.arange(self._length - at)
        found = {"input_ids": torch.from_numpy(inputs), "labels": torch.from_numpy(labels)}
        return {**found, DOCUMENT_POSITIONS: torch.from_numpy(positions)} if self._are_apart else found

    def _documents(self, window: int) -> list[tuple[int, int]]:
        """Returns where each document of a window begins, and how many of its tokens the window takes."""
        first = self._firsts[window]
        after = self._firsts[window + 1] if window + 1 < len(self) else len(self._sizes)
        return list(zip(self._begins[first:after].tolist(), self._sizes[first:after].tolist(), strict=True))


def _are_learned(tokens: TokenSet, begins: Numbers, sizes: Numbers) -> npt.NDArray[np.bool_]:
    """Returns which documents have a label that counts, in so many tokens as are taken of them."""
    are_learned = sizes > 1
    if tokens.answers is None:
        return are_learned
    first = 0
    while first < len(begins):
        base = begins[first]
        after = max(first + 1, int(np.searchsorted(begins, base + _COUNTED_TOKENS)))
        # A document's first token is nobody's label.
        froms, tos = begins[first:after] + 1 - base, begins[first:after] + sizes[first:after] - base
        counts = np.concatenate([[0], np.cumsum(tokens.answers[base : base + tos.max()], dtype=np.int64)])
        are_learned[first:after] &= counts[tos] > counts[np.minimum(froms, tos)]
        first = after
    return are_learned


def _packed(sizes: Numbers, room: int) -> Numbers:
    """Returns the first document of each window: as many come into it as there is room for, in their order."""
    ends = np.cumsum(sizes)
    firsts, filled = [0], 0
    while (after := int(np.searchsorted(ends, filled + room, side="right"))) < len(sizes):
        firsts.append(after)
        filled = int(ends[after - 1])
    return np.array(firsts, dtype=np.int64)
