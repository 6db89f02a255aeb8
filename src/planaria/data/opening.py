"""Opens a job's data: prepares them where a run begins, or opens what is there already.

torch is imported only where the user's code makes items.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from planaria.data.job_data import JobData, stream_identity, token_identity
from planaria.data.reading.remote import AttemptsAt, once_at
from planaria.data.reading.sources import DataError
from planaria.data.streams.blocks import Blocks, StreamAbout, open_stream, remove_stream, take_stream
from planaria.data.streams.reader_process import ReaderProcess
from planaria.data.streams.shelf import Shelf, most_blocks
from planaria.data.tokens.encoding import Tell
from planaria.data.tokens.preparation import StagedTokens, keep_tokenizer, prepare_tokens, stage_tokens
from planaria.data.tokens.token_set import TokenSet, open_tokens
from planaria.data.tokens.tokenizer import load_tokenizer
from planaria.job.history import KEYED, DataIdentity
from planaria.job.sections.data import STREAM_FIELDS, DataSection
from planaria.job.settings import Job
from planaria.job.values import is_dataset, is_hub_stream

if TYPE_CHECKING:
    from planaria.data.samples.dataset import Items

Check = Callable[[DataIdentity], None]
"""Raises what speaks against data, before they replace others."""

CACHE = ".tokens"
"""In the folder of runs: tokens and fetched files that runs share."""


def prepare(
    job: Job,
    folder: Path,
    check: Check = lambda identity: None,
    order: str = KEYED,
    tell: Tell = lambda text: None,
    attempts_at: AttemptsAt = once_at,
) -> JobData:
    """Opens a job's data; tokens are written to a folder first, where they are not there already.

    Of a stream a process is started that reads it until the data are closed.

    Args:
        job: whose they are.
        folder: of the tokens, see `prepare_tokens`.
        check: asked before tokens in the folder are replaced by others.
        order: in which samples of tokens come.
        tell: is told how far it is.
        attempts_at: what makes calls to sources that are URLs.

    Raises:
        DataError: they cannot be had.
        UserError: the function of a dataset cannot be imported.
    """
    if is_dataset(job.data.source) or is_hub_stream(job.data.source):
        return _prepare_unmade(job, folder, check, tell, attempts_at)
    cache = Path(job.run.folder) / CACHE
    staged: list[StagedTokens] = []
    try:
        for part, place, field in zip(job.data.parts, token_folders(job, folder), job.data.source_fields, strict=True):
            one = stage_tokens(part, place, order, cache=cache, tell=tell, field=field, attempts_at=attempts_at)
            staged.append(one)
        check(token_identity(job, [one.about for one in staged]))
    except BaseException:
        for one in staged:
            one.discard()
        raise
    remove_stream(folder)
    trained = tuple(one.take() for one in staged)
    if not job.eval.source:
        shutil.rmtree(_validation_folder(folder), ignore_errors=True)
        return JobData(job=job, trained=trained, validation=None)
    return JobData(job=job, trained=trained, validation=_prepare_validation(job, folder, tell, attempts_at))


def _prepare_validation(job: Job, folder: Path, tell: Tell, attempts_at: AttemptsAt) -> TokenSet:
    section = msgspec.structs.replace(job.data.as_no_stream, source=job.eval.source, sources=())
    place, cache = _validation_folder(folder), Path(job.run.folder) / CACHE
    return prepare_tokens(section, place, cache=cache, tell=tell, field="eval.source", attempts_at=attempts_at)


def _prepare_unmade(job: Job, folder: Path, check: Check, tell: Tell, attempts_at: AttemptsAt) -> JobData:
    """Opens data of which nothing is written before: a dataset, or a stream, whose reader is started."""
    made = None
    if is_dataset(job.data.source):
        from planaria.data.samples.items import called
        from planaria.data.streams.preparation import is_stream

        made = called(job.data.source, job.data.config, "data.source")
        if not is_stream(made):
            data = _with_items(job, made)
            check(data.identity)
            remove_stream(folder)
            return data
    from planaria.data.streams.preparation import prepare_stream

    blocks = prepare_stream(job, folder, lambda about: check(stream_identity(job, about)), made)
    reader = ReaderProcess(job, blocks)
    if not is_dataset(job.data.source):
        if job.eval.source:
            _prepare_validation(job, folder, tell, attempts_at)
        keep_tokenizer(load_tokenizer(job.data.tokenizer), folder)
    data = replace(_with_stream(job, blocks, folder), reader=reader)
    reader.start()
    return data


def prepare_elsewhere(job: Job, folder: Path, about: bytes, attempts_at: AttemptsAt = once_at) -> tuple[Blocks, Shelf]:
    """Opens a job's stream on a host that does not see where it is read: blocks come from there.

    Args:
        job: whose it is.
        folder: of the run's data here.
        about: the file that says what the stream is.
        attempts_at: what makes calls to a source that is evaluated on, where that is a URL.

    Raises:
        DataError: these cannot be had, or data.stream_disk_gb is too little.
    """
    blocks = take_stream(folder, about)
    if job.eval.source and not is_dataset(job.data.source):
        _prepare_validation(job, folder, lambda text: None, attempts_at)
    return blocks, Shelf(blocks, most_blocks(job, blocks.about))


def begin_elsewhere(job: Job, folder: Path, about: bytes) -> None:
    """Begins the blocks of a job's stream on a host that may have to read it, where another host reads it now.

    Args:
        job: whose it is.
        folder: of the run's data here.
        about: the file that says what the stream is.

    Raises:
        DataError: it cannot be read here, or is another one here.
        UserError: its function cannot be imported.
    """
    from planaria.data.streams.preparation import prepare_stream

    told = take_stream(folder, about).about

    def check(found: StreamAbout) -> None:
        if msgspec.structs.replace(found, block_samples=told.block_samples) != told:
            raise DataError(f"{told.named} gives other samples here than where the run began. Put the same code here.")

    prepare_stream(job, folder, check)


@contextmanager
def reader_standing_by(job: Job, folder: Path) -> Iterator[None]:
    """Has a process at hand that reads a run's stream when its reader, perhaps on another host, is gone.

    Args:
        job: whose stream it is, if it has one.
        folder: of the run's data.
    """
    blocks = open_stream(folder)
    if blocks is None:
        yield
        return
    reader = ReaderProcess(job, blocks)
    reader.start(stands_by=True)
    with closing(reader):
        yield


def open_data(job: Job, folder: Path) -> JobData:
    """Opens a job's data in a process that needs them: a dataset is made, tokens lie in the folder.

    Raises:
        DataError: there are none.
        UserError: the function of a dataset cannot be imported.
    """
    if (blocks := open_stream(folder)) is not None:
        return _with_stream(job, blocks, folder)
    if not is_dataset(job.data.source):
        validation = open_tokens(_validation_folder(folder)) if job.eval.source else None
        trained = tuple(open_tokens(place) for place in token_folders(job, folder))
        return JobData(job=job, trained=trained, validation=validation)
    from planaria.data.samples.items import called

    return _with_items(job, called(job.data.source, job.data.config, "data.source"))


def _with_items(job: Job, made: Any) -> JobData:
    from planaria.data.samples.dataset import items_of

    items = items_of(made, f"data.source = {job.data.source!r}")
    for name in STREAM_FIELDS:
        if (value := getattr(job.data, name)) != getattr(DataSection(), name):
            raise DataError(f"data.{name} = {value} is for streams, and {items.named} is a dataset. Leave it out.")
    validation = _validation_items(job)
    if validation is not None:
        validation.check_like(items.kinds, items.named)
    return JobData(job=job, trained=items, validation=validation)


def _with_stream(job: Job, blocks: Blocks, folder: Path) -> JobData:
    if not is_dataset(job.data.source):
        validation = open_tokens(_validation_folder(folder)) if job.eval.source else None
        return JobData(job=job, trained=blocks, validation=validation)
    if job.eval.share:
        raise DataError(
            f"eval.share = {job.eval.share} cannot be of a stream, which {blocks.about.named} is. Set eval.source."
        )
    items = _validation_items(job)
    if items is not None:
        items.check_like(blocks.about.kinds, blocks.about.named)
    return JobData(job=job, trained=blocks, validation=items)


def _validation_items(job: Job) -> Items | None:
    from planaria.data.samples.dataset import load_items

    if not job.eval.source:
        return None
    return load_items(job.eval.source, {**job.data.config, **job.eval.config}, "eval.source")


def token_folders(job: Job, folder: Path) -> list[Path]:
    """Returns where the tokens of each source are."""
    return [folder / f"source-{number}" for number in range(len(job.data.sources))] or [folder]


def _validation_folder(folder: Path) -> Path:
    """Returns where the tokens are that a job is evaluated on, if it has any of their own."""
    return folder / "validation"
