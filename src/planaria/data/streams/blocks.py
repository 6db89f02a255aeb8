"""A stream's samples in a folder: blocks of equally many, in the stream's order, so that each can be had by its number.

One process writes blocks (`planaria.data.streams.reader`); others say which ones they want, and wait. Of each block a
note is kept: what its samples are, as a hash, and where the stream was behind it. A block may be removed, its note not.
torch is imported only where samples are made or read.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from planaria.data.order import Numbers
from planaria.data.reading.sources import DataError, DataRaised
from planaria.data.tokens.encoding import Tell
from planaria.job.errors import UserCodeError, UserError

if TYPE_CHECKING:
    import torch

    from planaria.data.samples.items import Item, Kinds
    from planaria.data.samples.samples import Batch

POLL_S: Final = 0.02
"""Seconds between two looks at whether a block is wanted, or there."""

AHEAD_BLOCKS: Final = 4
"""Blocks that are read ahead at least, beside those of a shuffle buffer."""

_ABOUT, _END, _FAILED, _READ = "stream.json", "end.json", "failed.json", "read"
_WANTED, _NEW = "wanted", ".new"
_OPEN_BLOCKS: Final = 128
_BLOCK_BYTES: Final = 4 << 20
_BLOCK_SAMPLES: Final = range(16, 1025)
_SILENT_S: Final = 600.0
_AGAIN_S: Final = 1.0

Rows = npt.NDArray[np.uint8]
"""Samples as bytes, one a row."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor of each sample.

    Attributes:
        name: of the tensor.
        dtype: torch's name of its type.
        shape: of it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def type(self) -> torch.dtype:
        import torch

        found: torch.dtype = getattr(torch, self.dtype)
        return found

    @property
    def size_bytes(self) -> int:
        return self.type.itemsize * math.prod(self.shape)


class StreamAbout(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream is.

    Attributes:
        named: the job's field and its value, for messages.
        key: hash of what it is read by.
        fingerprint: SHA-256 of its first samples.
        looked_at: how many these are.
        parts: the tensors of a sample, in the order in which they lie in its row.
        block_samples: samples of a block; the last one may have fewer.
        vocab_size: of windows of tokens, ids are below it; None: samples are a function's.
        mask_token_id: of these, what hides a token, if there is such an id.
        tokenizer: of these, as in the job.
        tokenizer_identity: two tokenizers with one identity give the same ids.
    """

    named: str
    key: str
    fingerprint: str
    looked_at: int
    parts: tuple[Part, ...]
    block_samples: int
    vocab_size: int | None = None
    mask_token_id: int | None = None
    tokenizer: str = ""
    tokenizer_identity: str = ""

    @property
    def row_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)

    @property
    def kinds(self) -> Kinds:
        """Shapes and types of a sample's tensors."""
        import torch

        return {part.name: (torch.Size(part.shape), part.type) for part in self.parts}

    def row(self, item: Item) -> bytes:
        """Returns a sample as bytes."""
        import torch

        flat = (item[part.name].contiguous().reshape(-1) for part in self.parts)
        return b"".join(tensor.view(torch.uint8).numpy().tobytes() for tensor in flat)

    def batch(self, rows: Rows) -> Batch:
        """Returns samples that are bytes as tensors, one row for each."""
        import torch

        found, begin = {}, 0
        for part in self.parts:
            flat = np.array(rows[:, begin : begin + part.size_bytes], order="C").reshape(-1)
            found[part.name] = torch.from_numpy(flat).view(part.type).reshape(len(rows), *part.shape)
            begin += part.size_bytes
        return found


class BlockNote(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a block that was read.

    Attributes:
        digest: xxh3_128 of its bytes.
        position: where the stream was behind it, as its opener understands it; None: it cannot say.
    """

    digest: str
    position: Any = None


class _Failure(msgspec.Struct, frozen=True):
    text: str
    trace: str = ""


def block_samples(row_bytes: int, global_batch: int) -> int:
    """Returns how many samples a block is to have: those of a step, in bounds."""
    wanted = min(max(global_batch, _BLOCK_SAMPLES.start), _BLOCK_SAMPLES.stop - 1)
    return max(1, min(wanted, _BLOCK_BYTES // max(row_bytes, 1)))


def read_about(folder: Path) -> StreamAbout | None:
    """Returns what the stream is whose blocks a folder has; None: it has none."""
    try:
        return msgspec.json.decode((folder / _ABOUT).read_bytes(), type=StreamAbout)
    except (OSError, msgspec.DecodeError):
        return None


class Blocks:
    """A stream's samples by number, from 0.

    Args:
        folder: where blocks lie.
        about: what the stream is.

    Attributes:
        while_waiting: called again and again while a block is waited for; what it raises ends the wait, and the same
            samples can be asked for again.
    """

    def __init__(self, folder: Path, about: StreamAbout) -> None:
        self.folder = folder
        self.about = about
        self._opened: dict[int, Rows] = {}
        self._num_samples: int | None = None
        self.while_waiting: Callable[[], None] = lambda: None

    @classmethod
    def begin(cls, folder: Path, about: StreamAbout) -> Blocks:
        """Makes the folder of a stream of which nothing was read."""
        (folder / _WANTED).mkdir(parents=True)
        write_whole(folder / _ABOUT, msgspec.json.encode(about))
        return cls(folder, about)

    @property
    def num_samples(self) -> int | None:
        """How many samples the stream has, once its end was read."""
        if self._num_samples is None:
            with contextlib.suppress(FileNotFoundError):
                self._num_samples = json.loads((self.folder / _END).read_bytes())
        return self._num_samples

    def want(self, number: int) -> None:
        """Has a sample read ahead, with all before it."""
        self.want_block(number // self.about.block_samples)

    def want_missing(self, numbers: Numbers) -> None:
        """Has the blocks of these samples read that are not here."""
        for block in np.unique(numbers // self.about.block_samples).tolist():
            if block not in self._opened and not self.path(block).exists():
                self.want_block(block)

    def want_block(self, block: int) -> None:
        """Has a block read, with all before it."""
        (self.folder / _WANTED / str(block)).touch()

    def wait(self, number: int, tell: Tell = lambda text: None) -> bool:
        """Waits until a sample is there; False: the stream ends before it.

        Raises:
            DataError: it cannot be read, or not again as it was.
        """
        return self._block(number // self.about.block_samples, tell) is not None and (
            self.num_samples is None or number < self.num_samples
        )

    def batch(self, numbers: Numbers) -> Batch:
        """Returns samples that are there, or were once, in this order.

        Raises:
            DataError: they cannot be read, or not again as they were.
        """
        rows = np.empty((len(numbers), self.about.row_bytes), np.uint8)
        blocks, places = np.divmod(numbers, self.about.block_samples)
        for block in np.unique(blocks).tolist():
            found = self._block(block)
            assert found is not None, f"block {block} is behind the end"
            rows[blocks == block] = found[places[blocks == block]]
        return self.about.batch(rows)

    def path(self, block: int) -> Path:
        return self.folder / f"block-{block:09}.bin"

    @property
    def lying(self) -> list[int]:
        """Blocks that are there, the one first that was not written for the longest."""
        found = sorted((path.stat().st_mtime_ns, path) for path in self.folder.glob("block-*.bin"))
        return [int(path.stem.removeprefix("block-")) for _, path in found]

    def is_behind_the_end(self, block: int) -> bool:
        """Returns whether the stream is known to end before a block."""
        end = self.num_samples
        return end is not None and block * self.about.block_samples >= end

    def note(self, block: int) -> BlockNote | None:
        """Returns what is known of a block; None: it was never read."""
        try:
            return msgspec.json.decode(self._note(block).read_bytes(), type=BlockNote)
        except (OSError, msgspec.DecodeError):
            return None

    def keep(self, block: int, content: bytes, position: Any) -> None:
        """Writes a block and its note."""
        write_whole(self._note(block), msgspec.json.encode(BlockNote(digest=digest_of(content), position=position)))
        write_whole(self.path(block), content)

    def end(self, num_samples: int) -> None:
        """Records how many samples the stream has."""
        write_whole(self.folder / _END, json.dumps(num_samples).encode())

    def tell_read(self, num_samples: int) -> None:
        """Records how far the reader is, for those that wait."""
        write_whole(self.folder / _READ, str(num_samples).encode())

    @property
    def num_read(self) -> int:
        """How many samples the reader has read."""
        try:
            return int((self.folder / _READ).read_text())
        except FileNotFoundError:
            return 0

    def fail(self, error: DataError | UserError) -> None:
        """Has all that wait for a block raise an error."""
        trace = error.trace if isinstance(error, UserCodeError) else ""
        self.keep_failure(msgspec.json.encode(_Failure(str(error), trace)))

    def keep_failure(self, failure: bytes) -> None:
        """Writes the file that says why the stream cannot be read."""
        write_whole(self.folder / _FAILED, failure)

    @property
    def failure(self) -> bytes:
        """The file that says why the stream cannot be read; empty: it can."""
        try:
            return (self.folder / _FAILED).read_bytes()
        except FileNotFoundError:
            return b""

    def clear(self) -> None:
        """Forgets wants and failures of an earlier run."""
        (self.folder / _FAILED).unlink(missing_ok=True)
        self.taken_wants()

    def raise_failure(self) -> None:
        """Raises what the reader failed with, if it did. Raises DataError."""
        if not (told := self.failure):
            return
        failure = msgspec.json.decode(told, type=_Failure)
        raise DataRaised(failure.text, failure.trace) if failure.trace else DataError(failure.text)

    def taken_wants(self) -> set[int]:
        """Returns the blocks that are wanted, each once."""
        found = set()
        for wanted in self._wants():
            wanted.unlink(missing_ok=True)
            found.add(int(wanted.name))
        return found

    def _wants(self) -> Iterator[Path]:
        with os.scandir(self.folder / _WANTED) as entries:
            yield from [Path(entry.path) for entry in entries]

    def _block(self, block: int, tell: Tell = lambda text: None) -> Rows | None:
        """Returns a block's rows, waiting for it; None: the stream ends before it."""
        if block in self._opened:
            return self._opened[block]
        self.want_block(block)
        read, since, wanted = -1, time.monotonic(), time.monotonic()
        while (rows := self._mapped(block)) is None:
            if self.is_behind_the_end(block):
                return None
            self.raise_failure()
            before, read = read, self.num_read
            if read != before:
                since = time.monotonic()
                tell(f"{read} samples of the stream are read")
            elif time.monotonic() - since > _SILENT_S:
                raise DataError(
                    f"{self.about.named}: it gave no sample for {_SILENT_S:.0f} s. Mend what it reads from, and go on "
                    "by --resume."
                )
            if time.monotonic() - wanted > _AGAIN_S:  # a reader that is gone may have taken it down
                self.want_block(block)
                wanted = time.monotonic()
            self.while_waiting()
            time.sleep(POLL_S)
        if len(self._opened) >= _OPEN_BLOCKS:
            del self._opened[next(iter(self._opened))]
        self._opened[block] = rows
        return rows

    def _mapped(self, block: int) -> Rows | None:
        try:
            flat = np.memmap(self.path(block), np.uint8, "r")
        except FileNotFoundError:
            return None
        return flat.reshape(-1, self.about.row_bytes)

    def _note(self, block: int) -> Path:
        return self.folder / f"block-{block:09}.json"


def digest_of(content: bytes) -> str:
    """Returns what tells a block's bytes from others."""
    return xxhash.xxh3_128_hexdigest(content)


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file that is whole when it has its name."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}{_NEW}")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def stream_folder(folder: Path) -> Path:
    """Returns where the blocks are of a run whose data have this folder."""
    return folder / "stream"


def open_stream(folder: Path) -> Blocks | None:
    """Returns the blocks that a run's folder of data has; None: its data are no stream."""
    about = read_about(stream_folder(folder))
    return None if about is None else Blocks(stream_folder(folder), about)


def take_stream(folder: Path, about: bytes) -> Blocks:
    """Begins the blocks of a stream that is read elsewhere, in a run's folder of data; none that lie there stay.

    Args:
        folder: of the run's data.
        about: the file that says what the stream is, as the folder in which it is read has it.
    """
    remove_stream(folder)
    return Blocks.begin(stream_folder(folder), msgspec.json.decode(about, type=StreamAbout))


def remove_stream(folder: Path) -> None:
    """Removes the blocks that a folder has, if it has any."""
    shutil.rmtree(stream_folder(folder), ignore_errors=True)
