"""Makes a job's tokens: written once for each run folder, or found there or in the cache.

A source that is a token file already is mapped where it lies, and never copied or changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from planaria.data.reading.chats import RowFormat, row_format
from planaria.data.reading.hub import hub_files, is_hub_name
from planaria.data.reading.remote import fetched
from planaria.data.reading.sources import DataError, Kind, SourceFile, find_files
from planaria.data.reading.text import check_file
from planaria.data.tokens.encoding import NEW, Encoding, Progress, Tell, remove
from planaria.data.tokens.token_files import check_ids, map_ids, open_token_file
from planaria.data.tokens.token_set import (
    TOKENS,
    TokensAbout,
    TokenSet,
    file_names,
    fingerprint_of,
    map_beside,
    map_tokens,
    read_about,
    write_about,
)
from planaria.data.tokens.tokenizer import Tokenizer, id_dtype, load_tokenizer
from planaria.job.history import KEYED
from planaria.job.registry import DataSource
from planaria.job.sections.data import DataSection, Packing
from planaria.job.values import is_url

TOKENIZER = "tokenizer.json"
"""Copy of the job's tokenizer, if it has one, so that a run's export needs nothing outside of its folder."""

CHAT_TEMPLATE = "chat_template.jinja"
"""Copy of what makes a text of a chat, likewise; transformers reads a file of this name."""

_FORMAT = 2

_OPTIONS = ("column", "on_bad_row", "eos", "token_dtype", "messages", "prompt", "completion")
"""Fields of [data] beside source and tokenizer that change the tokens."""

_COPIED_TOKENS = 1 << 22

DATA_CACHE_BYTES = 32 << 20
"""A source of so many bytes takes seconds to encode."""


def prepare_tokens(
    section: DataSection,
    folder: Path,
    *,
    cache: Path | None = None,
    tell: Tell = lambda text: None,
    field: str = "data.source",
) -> TokenSet:
    """Writes the tokens of a source to a folder, or finds them there already.

    Args:
        section: the job's [data].
        folder: made if absent.
        cache: folder in which the tokens of large sources are kept for other runs, and finished if this is interrupted.
        tell: is told how far it is.
        field: of the job, that names the source.

    Raises:
        DataError: the source or the tokenizer cannot be read, or there is nothing in it.
    """
    return stage_tokens(section, folder, cache=cache, tell=tell, field=field).take()


def stage_tokens(
    section: DataSection,
    folder: Path,
    order: str = KEYED,
    *,
    cache: Path | None = None,
    tell: Tell = lambda text: None,
    field: str = "data.source",
) -> StagedTokens:
    """Makes the tokens of a source, but does not replace those that a folder has; see `prepare_tokens`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = load_tokenizer(section.tokenizer)
    named = f"{field} = {section.source!r}"
    formatted = row_format(section)
    files = _source_files(section.source, formatted, cache or folder, field, tell)
    _check_kind(files[0], section, named)
    key, size_bytes = _key(tokenizer, formatted, files, section, named)
    kept = read_about(folder)
    if kept is not None and kept.key == key:
        with contextlib.suppress(DataError):  # tokens.bin was removed or cut short: it is made again
            map_tokens(kept, folder)
            return StagedTokens(kept, order, folder, named)
    source = Encoding(section=section, tokenizer=tokenizer, format=formatted, files=files, named=named, key=key)
    with _told_where_full(named, folder):
        return _staged(source, folder, order, size_bytes, cache, tell)


class StagedTokens:
    """Tokens that were made for a folder which still has those of before.

    Args:
        about: what they are.
        order: in which their samples are to come.
        folder: that is to have them.
        named: how messages call the source.
        source: what they were made from; None: they are the folder's own.
        place: where their files are; None: they have none of their own.
        cached: whether the files stay there as well.
    """

    def __init__(
        self,
        about: TokensAbout,
        order: str,
        folder: Path,
        named: str,
        source: Encoding | None = None,
        place: Path | None = None,
        *,
        cached: bool = False,
    ) -> None:
        self.about = msgspec.structs.replace(about, order=order)
        self._is_written = source is None and about.order == order
        self._folder = folder
        self._named = named
        self._source = source
        self._place = place
        self._cached = cached

    def take(self) -> TokenSet:
        """Puts them into the folder. Raises DataError: it has no room."""
        about = self.about
        with _told_where_full(self._named, self._folder):
            if self._place is not None and self._cached:
                for name in file_names(about):
                    _link(self._place / name, self._folder / name)
            elif self._place is not None:
                _take(about, self._folder)
            if self._source is not None:
                keep_tokenizer(self._source.tokenizer, self._folder, self._source.format.template)
            if not self._is_written:
                write_about(about, self._folder)
        return map_tokens(about, self._folder)

    def discard(self) -> None:
        """Removes them; what the folder has stays as it is."""
        if self._place is not None and not self._cached:
            remove(self._folder / (TOKENS + NEW))


def _source_files(source: str, formatted: RowFormat, cache: Path, field: str, tell: Tell) -> tuple[SourceFile, ...]:
    """Returns the files of a source, fetched if they lie elsewhere."""
    named = f"{field} = {source!r}"
    if is_hub_name(source):
        return hub_files(source, formatted.columns, cache, named, tell)
    return find_files(fetched(source, cache, named, tell) if is_url(source) else source, field)


@contextlib.contextmanager
def _told_where_full(named: str, folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{named}: its tokens cannot be written to {error.filename or folder} ({error.strerror or error}). "
            "Make room there, or set run.folder to a folder elsewhere."
        ) from error


def _staged(
    source: Encoding, folder: Path, order: str, size_bytes: int, cache: Path | None, tell: Tell
) -> StagedTokens:
    """Makes the tokens of a source, or finds them in the cache."""
    if source.files[0].kind is Kind.TOKENS and len(source.files) == 1:
        return StagedTokens(_describe_token_file(source), order, folder, source.named, source)
    if cache is not None and size_bytes >= DATA_CACHE_BYTES:
        place = cache / source.key
        cached = _from_cache(source, place, tell)
        if cached is not None:
            return StagedTokens(cached, order, folder, source.named, source, place, cached=True)
    try:
        about = _made(source, folder / (TOKENS + NEW), tell)
    except BaseException:
        remove(folder / (TOKENS + NEW))
        raise
    return StagedTokens(about, order, folder, source.named, source, folder)


def _check_kind(file: SourceFile, section: DataSection, named: str) -> None:
    """Refuses sources that have not what windows need. Raises DataError."""
    if section.has_answers and not file.kind.has_rows:
        field, column = ("messages", section.messages) if section.messages else ("prompt", section.prompt)
        raise DataError(
            f"{named} is {file.kind.value}, which has no columns, and data.{field} = {column!r} is one. "
            "Give JSON Lines, Parquet or Arrow."
        )
    if section.windows is not Packing.ACROSS and file.kind is Kind.TOKENS:
        raise DataError(
            f"{named} is {file.kind.value}, which do not say where documents end, and data.packing = "
            f'"{section.windows.value}" needs to know. Set it to "across", or give the texts.'
        )


def _take(about: TokensAbout, folder: Path) -> None:
    """Gives files that were written whole their names."""
    for name in file_names(about):
        os.replace(folder / (name + NEW), folder / name)


def keep_tokenizer(tokenizer: Tokenizer, folder: Path, template: str = "") -> None:
    """Keeps what an export needs: the tokenizer's file, and what makes a text of a chat."""
    if tokenizer.content is not None:
        (folder / TOKENIZER).write_bytes(tokenizer.content)
    if template:
        (folder / CHAT_TEMPLATE).write_text(template, encoding="utf-8")


def _key(
    tokenizer: Tokenizer, formatted: RowFormat, files: tuple[SourceFile, ...], section: DataSection, named: str
) -> tuple[str, int]:
    """Returns the hash of what the tokens are made from, and how many bytes that is."""
    digest = hashlib.sha256(f"{_FORMAT}\0{section.source}\0{tokenizer.identity}\0".encode())
    size_bytes = 0
    for file in files:
        try:
            status = file.path.stat()
        except OSError as error:
            raise DataError(f"{named}: cannot open {file.path} ({error.strerror}). Correct the path.") from error
        digest.update(f"{file.path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
        size_bytes += status.st_size
    for name in _OPTIONS:
        if (value := getattr(section, name)) != getattr(DataSection(), name):
            digest.update(f"{name}\0{value}\0".encode())
    if formatted.identity:
        digest.update(f"template\0{formatted.identity}\0".encode())
    if section.windows is not Packing.ACROSS:
        digest.update(b"documents\0")
    return digest.hexdigest(), size_bytes


def _made(source: Encoding, output: Path, tell: Tell) -> TokensAbout:
    """Makes the tokens of a source into a file, and what goes with them beside it."""
    if source.section.source not in [*DataSource]:
        for file in source.files:
            check_file(file, source.named)
    if source.files[0].kind is Kind.TOKENS:
        _copy_tokens(source, output)
        done = Progress()
    else:
        done = source.write(output, tell)
    dtype = np.dtype(id_dtype(source.tokenizer.vocab_size)).newbyteorder("<").str
    about = _about(source, path=TOKENS, dtype=dtype, done=done)
    tokens = TokenSet(about, map_ids(output, dtype, source.named), *map_beside(about, output.parent, NEW))
    return msgspec.structs.replace(about, count=len(tokens.ids), fingerprint=fingerprint_of(tokens))


def _copy_tokens(source: Encoding, output: Path) -> None:
    dtype = np.dtype(id_dtype(source.tokenizer.vocab_size)).newbyteorder("<")
    with output.open("wb") as out:
        for file in source.files:
            ids = open_token_file(file.path, source.section, source.named)
            check_ids(ids, source.tokenizer.vocab_size, source.section.tokenizer, f"{source.named}: {file.path}")
            for start in range(0, len(ids), _COPIED_TOKENS):
                out.write(ids[start : start + _COPIED_TOKENS].astype(dtype).data)


def _from_cache(source: Encoding, place: Path, tell: Tell) -> TokensAbout | None:
    """Returns what a folder of the cache has, made there if it is not there whole.

    None: the file system has no locks, without which two runs would write to one file.
    """
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            return None
        about = read_about(place)
        if about is not None:
            with contextlib.suppress(DataError):
                map_tokens(about, place)
                return about
        about = _made(source, place / (TOKENS + NEW), tell)
        _take(about, place)
        return write_about(about, place)


def _link(made: Path, wanted: Path) -> None:
    """Gives a file a further name, or copies it to where it cannot have one."""
    temporary = wanted.with_name(wanted.name + ".link")  # what is being written is never a name of what is kept
    temporary.unlink(missing_ok=True)
    try:
        os.link(made, temporary)
    except OSError:
        shutil.copyfile(made, temporary)
    os.replace(temporary, wanted)


def _describe_token_file(source: Encoding) -> TokensAbout:
    (file,) = source.files
    ids = open_token_file(file.path.resolve(), source.section, source.named)
    check_ids(ids, source.tokenizer.vocab_size, source.section.tokenizer, source.named)
    about = _about(source, path=str(file.path.resolve()), dtype=ids.dtype.str, done=Progress())
    return msgspec.structs.replace(about, count=len(ids), fingerprint=fingerprint_of(TokenSet(about, ids)))


def _about(source: Encoding, *, path: str, dtype: str, done: Progress) -> TokensAbout:
    """Describes a source's tokens, but for what they are."""
    tokenizer = source.tokenizer
    return TokensAbout(
        source=source.section.source,
        tokenizer=source.section.tokenizer,
        path=path,
        dtype=dtype,
        count=0,
        vocab_size=tokenizer.vocab_size,
        mask_token_id=tokenizer.mask_token_id,
        pad_token_id=tokenizer.pad_token_id,
        fingerprint="",
        key=source.key,
        tokenizer_identity=tokenizer.identity,
        bad_rows=done.bad_rows,
        first_bad_row=done.first_bad,
        separator_id=tokenizer.separator_id,
        num_documents=done.num_documents,
        has_answers=source.section.has_answers,
    )
