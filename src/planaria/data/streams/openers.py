"""Opens streams: gives their samples one after the other, from the beginning or from a position that was saved."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import numpy as np
import torch

from planaria.data.order import SAMPLES, generator
from planaria.data.reading.chats import row_format
from planaria.data.reading.hub import hub_stream
from planaria.data.reading.rows import BadRow
from planaria.data.reading.sources import DataError
from planaria.data.reading.stream import Stream
from planaria.data.samples.items import Item, called, item_of, raised, seed_all
from planaria.data.tokens.tokenizer import Tokenizer
from planaria.job.sections.data import DataSection, OnBadRow
from planaria.job.settings import Job

WINDOW = "window"
"""Name of a sample's tensor where samples are windows of tokens: `sequence_length` ids and the one after them."""

_BATCH_BYTES: Final = 1 << 20
_BATCH_ROWS: Final = 1024


class Opener(Protocol):
    """A stream that can be opened more than once, each time to give the same samples."""

    def open(self, position: Any, number: int) -> Opened:
        """Returns the stream at a position.

        Args:
            position: that an opened stream told, or None: at the beginning.
            number: of the sample that comes next there.

        Raises:
            DataError: it cannot be opened.
        """
        ...


class Opened(Protocol):
    """A stream that is being read."""

    def __next__(self) -> Item:
        """Returns the next sample.

        Raises:
            StopIteration: there is none.
            DataError: it cannot be had.
        """
        ...

    @property
    def position(self) -> Any:
        """Returns where the stream is, as JSON has it; None: it cannot say, or not so that it can be opened there."""
        ...


class FunctionStream:
    """Samples of what a function of the user's returns: anything that can be iterated over.

    Before each sample the generators of torch, numpy and Python are seeded from the job's seed and its number.

    Args:
        made: what the function returned, if it was called already; it is read by the first one that opens it.
    """

    def __init__(self, job: Job, named: str, made: Any = None) -> None:
        self._job = job
        self._named = named
        self._made = made

    def open(self, position: Any, number: int) -> _OfFunction:
        made, self._made = self._made, None
        if made is None:
            made = called(self._job.data.source, self._job.data.config, "data.source")
        try:
            if position is not None:
                made.load_state_dict(position)
            return _OfFunction(made, iter(made), self._named, number, self._job.train.seed)
        except Exception as error:  # the user's code may raise anything
            raise raised(self._named, "its beginning", error) from error


class _OfFunction:
    def __init__(self, made: Any, items: Iterator[Any], named: str, number: int, seed: int) -> None:
        self._items = items
        self._named = named
        self._number = number
        self._seed = seed
        has_position = all(hasattr(made, name) for name in ("state_dict", "load_state_dict"))
        self._state: Callable[[], Any] = made.state_dict if has_position else lambda: None

    def __next__(self) -> Item:
        seed_all(int(generator(self._seed, SAMPLES, self._number).integers(2**32)))
        try:
            given = next(self._items)
        except StopIteration:
            raise
        except Exception as error:  # the user's code may raise anything
            raise raised(self._named, f"sample {self._number}", error) from error
        item = item_of(given, f"{self._named}: sample {self._number}")
        self._number += 1
        return item

    @property
    def position(self) -> Any:
        try:
            state = self._state()
            return state if json.loads(json.dumps(state)) == state else None
        except Exception:  # no JSON, or the user's code raises: it is read from the beginning
            return None


class RowStream:
    """Windows of tokens of a stream of rows with text: documents one after the other, cut where a window is full.

    Args:
        open_rows: returns the rows, at their beginning.
    """

    def __init__(
        self,
        section: DataSection,
        sequence_length: int,
        tokenizer: Tokenizer,
        named: str,
        open_rows: Callable[[], Stream],
    ) -> None:
        self.section = section
        self.sequence_length = sequence_length
        self.tokenizer = tokenizer
        self.named = named
        self._open_rows = open_rows

    def open(self, position: Any, number: int) -> _OfRows:
        rows = self._open_rows()
        if position is not None:
            rows.load_state_dict(position["rows"])
        return _OfRows(self, rows, position)


class _OfRows:
    """Encodes rows in batches. A position is that of the rows before a batch, and what was taken of it since."""

    def __init__(self, stream: RowStream, rows: Stream, position: Any) -> None:
        at = position or {"rows": None, "number": 0, "rest": [], "taken": 0}
        self._stream = stream
        self._rows = rows
        self._iterator = iter(rows)
        self._format = row_format(stream.section)
        self._number: int = at["number"]
        self._ids = np.array(at["rest"], np.int32)
        self._taken = 0
        self._before = at
        self._is_over = False
        if position is not None:
            self._read_on()
            self._taken = at["taken"]

    def __next__(self) -> Item:
        length = self._stream.sequence_length
        while len(self._ids) <= self._taken + length:
            if self._is_over:
                raise StopIteration
            self._read_on()
        window = self._ids[self._taken : self._taken + length + 1]
        self._taken += length
        return {WINDOW: torch.from_numpy(window.copy())}

    @property
    def position(self) -> Any:
        return {**self._before, "taken": self._taken}

    def _read_on(self) -> None:
        """Encodes the next rows, behind the ids that are left."""
        rest = self._ids[self._taken :]
        try:
            state = json.loads(json.dumps(self._rows.state_dict()))
            texts, ends = self._texts()
        except DataError:
            raise
        except Exception as error:  # the library, and what is under it, have many errors
            raise DataError(
                f"{self._stream.named}: the stream cannot be read behind row {self._number} "
                f"({' '.join(str(error).split())}). Check the network, and go on by --resume."
            ) from error
        self._before = {"rows": state, "number": self._number, "rest": rest.tolist()}
        self._number += len(ends)
        separator = self._stream.tokenizer.separator_id
        has_ending = self._stream.section.eos and separator is not None
        ending = np.array([separator] if has_ending else [], np.int32)
        found = [rest]
        for ids, is_last in zip(
            self._stream.tokenizer.encode(texts), [one for row in ends for one in row], strict=True
        ):
            found += [ids.astype(np.int32), ending] if is_last else [ids.astype(np.int32)]
        self._ids, self._taken = np.concatenate(found), 0

    def _texts(self) -> tuple[list[bytes], list[list[bool]]]:
        """Returns the pieces of the next rows, and whether a document ends with each, row by row."""
        texts: list[bytes] = []
        ends: list[list[bool]] = []
        size = 0
        while size < _BATCH_BYTES and len(ends) < _BATCH_ROWS:
            try:
                row = next(self._iterator)
            except StopIteration:
                self._is_over = True
                break
            try:
                pieces = list(self._format.pieces(row))
            except BadRow as error:
                if self._stream.section.on_bad_row is OnBadRow.REFUSE:
                    raise DataError(
                        f"{self._stream.named}: row {self._number + len(ends) + 1} {error}. Set data.column, or "
                        'data.on_bad_row = "skip".'
                    ) from None
                pieces = []
            texts += [piece.text for piece in pieces]
            ends.append([piece.is_last for piece in pieces])
            size += sum(len(piece.text) for piece in pieces)
        return texts, ends


def hub_rows(job: Job, tokenizer: Tokenizer, named: str) -> RowStream:
    """Returns the stream of a job whose source is a dataset of the hub."""
    return RowStream(job.data, job.train.sequence_length, tokenizer, named, lambda: hub_stream(job.data.source, named))
