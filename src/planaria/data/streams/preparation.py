"""Prepares a stream: looks at its first samples, and begins its blocks, or goes on with those that a folder has."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from planaria.data.reading.sources import DataError
from planaria.data.samples.items import LOOKED_AT, Item, check_finite, count_in, drawing_aside, kinds, told
from planaria.data.streams.blocks import (
    Blocks,
    Part,
    StreamAbout,
    block_samples,
    read_about,
    stream_folder,
)
from planaria.data.streams.openers import FunctionStream, Opener, hub_rows
from planaria.data.streams.shelf import most_blocks
from planaria.data.tokens.tokenizer import load_tokenizer
from planaria.job.settings import Job
from planaria.job.values import is_dataset

_FORMAT = 1

Check = Callable[[StreamAbout], None]
"""Raises what speaks against a stream, before it replaces another."""


def is_stream(made: Any) -> bool:
    """Whether what a function of the user's returned can be iterated over, and has no items by number."""
    from torch.utils.data import IterableDataset

    by_number = hasattr(made, "__len__") and hasattr(made, "__getitem__")
    return isinstance(made, IterableDataset) or (hasattr(made, "__iter__") and not by_number)


def opener_of(job: Job, made: Any = None) -> Opener:
    """Returns what opens a job's stream.

    Args:
        job: whose it is.
        made: what the user's function returned, if it was called already.
    """
    named = f"data.source = {job.data.source!r}"
    if is_dataset(job.data.source):
        return FunctionStream(job, named, made)
    return hub_rows(job, load_tokenizer(job.data.tokenizer), named)


def prepare_stream(job: Job, folder: Path, check: Check, made: Any = None) -> Blocks:
    """Returns the blocks of a job's stream: those that a folder has of it, or none yet.

    Args:
        job: whose stream it is.
        folder: of the run's data.
        check: asked before another stream's blocks are removed.
        made: what the user's function returned, if the stream is one of a function.

    Raises:
        DataError: the stream cannot be used, or is another the second time that it is read.
    """
    place = stream_folder(folder)
    about = _about(job, opener_of(job, made))
    most_blocks(job, about)
    check(about)
    kept = read_about(place)
    if kept is not None and kept == msgspec.structs.replace(about, block_samples=kept.block_samples):
        return Blocks(place, kept)
    shutil.rmtree(place, ignore_errors=True)
    return Blocks.begin(place, about)


def _about(job: Job, opener: Opener) -> StreamAbout:
    named = f"data.source = {job.data.source!r}"
    with drawing_aside():
        first = _first(opener, named)
        if not first:
            few = "no samples" if is_dataset(job.data.source) else "fewer tokens than those of one sequence"
            raise DataError(f"{named} gives {few}. Give more data.")
        fingerprint = _fingerprint(first)
        if is_dataset(job.data.source) and _fingerprint(_first(opener, named)) != fingerprint:
            raise DataError(
                f"{named}: its first samples are others when it is read again. A stream must give the same ones in the "
                "same order each time its function is called. Take random numbers from torch, np.random or random, "
                "which are seeded for each sample."
            )
    parts = tuple(
        Part(name=name, dtype=str(dtype).removeprefix("torch."), shape=tuple(shape))
        for name, (shape, dtype) in kinds(first[0]).items()
    )
    about = StreamAbout(
        named=named, key=_key(job), fingerprint=fingerprint, looked_at=len(first), parts=parts, block_samples=1
    )
    about = msgspec.structs.replace(about, block_samples=block_samples(about.row_bytes, job.train.global_batch))
    if is_dataset(job.data.source):
        return about
    tokenizer = load_tokenizer(job.data.tokenizer)
    return msgspec.structs.replace(
        about,
        vocab_size=tokenizer.vocab_size,
        mask_token_id=tokenizer.mask_token_id,
        tokenizer=job.data.tokenizer,
        tokenizer_identity=tokenizer.identity,
    )


def _first(opener: Opener, named: str) -> list[Item]:
    """Returns a stream's first samples, looked at."""
    opened, found = opener.open(None, 0), list[Item]()
    while len(found) < LOOKED_AT:
        try:
            item = next(opened)
        except StopIteration:
            break
        check_finite(item, f"{named}: sample {len(found)}")
        found.append(item)
        if kinds(item) != kinds(found[0]):
            raise DataError(
                f"{named}: sample {len(found) - 1} has {told(kinds(item))}, and sample 0 {told(kinds(found[0]))}. "
                "Make all samples alike, so that they can be stacked."
            )
    return found


def _fingerprint(items: list[Item]) -> str:
    digest = hashlib.sha256()
    for number, item in enumerate(items):
        count_in(digest, number, item)
    return digest.hexdigest()


def _key(job: Job) -> str:
    """Returns the hash of what a stream is read by, beside what it gives."""
    data = job.data
    options = [data.config] if is_dataset(data.source) else [data.column, data.on_bad_row, data.eos]
    read_by = [_FORMAT, data.source, job.train.seed, *options]
    return hashlib.sha256(msgspec.json.encode(read_by, order="deterministic")).hexdigest()
