"""Keeps a job's tokens on disk: written once per run folder, then memory-mapped by every worker.

`prepare_tokens` writes `tokens.bin` (little-endian ids, one after the other) and `tokens.json` (what they are); beside
them, where windows need to know, where documents end and which tokens are learned. A source that is a token file
already is mapped where it lies, and never copied or changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from planaria.data.encoding import ANSWERS, DOCUMENTS, NEW, Encoding, Progress, Tell, remove
from planaria.data.reading.chats import RowFormat, row_format
from planaria.data.reading.hub import hub_files, is_hub_name
from planaria.data.reading.remote import fetched, is_url
from planaria.data.reading.sources import DataError, Kind, SourceFile, find_files
from planaria.data.reading.text import check_file
from planaria.data.token_files import TokenArray, check_ids, chunks, map_ids, open_token_file
from planaria.data.tokenizer import Tokenizer, id_dtype, load_tokenizer
from planaria.job.history import KEYED, SHUFFLED
from planaria.job.registry import DataSource
from planaria.job.sections.data import DataSection, Packing

_TOKENS = "tokens.bin"
_ABOUT = "tokens.json"
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
_QUICK_BYTES = 1 << 20
_QUICK_PIECES = 64


class TokensAbout(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of `tokens.json`.

    Attributes:
        source: as in the job.
        tokenizer: as in the job.
        tokenizer_identity: two tokenizers with one identity give the same ids; "": not known.
        path: of the ids; relative to the folder for tokens.bin.
        dtype: numpy's name of the ids' type.
        count: number of tokens.
        vocab_size: ids are below it.
        mask_token_id: what hides a token, if the tokenizer has one.
        pad_token_id: of the tokenizer, if it has one.
        fingerprint: SHA-256 of the ids (of evenly spaced chunks, where there are more than 2**30).
        key: of what the tokens were made from: while it is the same, they are not made again.
        order: in which samples come, see `planaria.data.order`.
        bad_rows: that were left out.
        first_bad_row: the first of them, and why.
        separator_id: id that ends a document, if the tokenizer has one.
        num_documents: whose ends are there; 0: they are not.
        has_answers: whether each token is marked as learned or not.
    """

    source: str
    tokenizer: str
    path: str
    dtype: str
    count: int
    vocab_size: int
    mask_token_id: int | None
    pad_token_id: int | None
    fingerprint: str
    key: str
    tokenizer_identity: str = ""
    order: str = SHUFFLED
    bad_rows: int = 0
    first_bad_row: str = ""
    separator_id: int | None = None
    num_documents: int = 0
    has_answers: bool = False


Check = Callable[[TokensAbout], None]
"""Raises what speaks against tokens, before they replace others."""

_NO_DOCUMENTS: npt.NDArray[np.int64] = np.zeros(0, np.int64)


class TokenSet:
    """The tokens of a job.

    Attributes:
        about: what they are.
        ids: all of them, one after the other, memory-mapped and read-only.
        documents: where each document ends; none, where no window needs to know.
        answers: 1 for each token that is learned, 0 for others; None: all are.
    """

    def __init__(
        self,
        about: TokensAbout,
        ids: TokenArray,
        documents: npt.NDArray[np.int64] = _NO_DOCUMENTS,
        answers: npt.NDArray[np.uint8] | None = None,
    ) -> None:
        self.about = about
        self.ids = ids
        self.documents = documents
        self.answers = answers

    def __len__(self) -> int:
        return self.about.count

    @property
    def vocab_size(self) -> int:
        return self.about.vocab_size

    @property
    def mask_token_id(self) -> int | None:
        return self.about.mask_token_id

    @property
    def pad_token_id(self) -> int | None:
        return self.about.pad_token_id

    @property
    def fingerprint(self) -> str:
        return self.about.fingerprint

    def quick_hash(self) -> str:
        """Hashes (xxh3_128, hex) the ids as they lie there: whole up to 64 MB, else 64 evenly spaced pieces of 1 MB.

        Nodes tell by it whether they have the same tokens; it takes some ten milliseconds.
        """
        about = self.about
        digest = xxhash.xxh3_128(f"{len(self)} {self.ids.dtype.str} {about.vocab_size} {about.mask_token_id}".encode())
        for array in (self.ids, self.documents, self.answers):
            if array is not None:
                step = _QUICK_BYTES // array.dtype.itemsize
                last = max(0, len(array) - step)
                for start in sorted({index * last // (_QUICK_PIECES - 1) for index in range(_QUICK_PIECES)}):
                    digest.update(np.ascontiguousarray(array[start : start + step]).data)
        return digest.hexdigest()


def prepare_tokens(
    section: DataSection,
    folder: Path,
    check: Check = lambda about: None,
    order: str = KEYED,
    *,
    cache: Path | None = None,
    tell: Tell = lambda text: None,
    field: str = "data.source",
) -> TokenSet:
    """Writes the tokens of a source to a folder, or finds them there already.

    Args:
        section: the job's [data].
        folder: made if absent.
        check: asked before other tokens in the folder are replaced.
        order: in which samples come.
        cache: folder in which the tokens of large sources are kept for other runs, and finished if this is interrupted.
        tell: is told how far it is.
        field: of the job, that names the source.

    Raises:
        DataError: the source or the tokenizer cannot be read, or there is nothing in it.
    """
    staged = stage_tokens(section, folder, order, cache=cache, tell=tell, field=field)
    try:
        check(staged.about)
    except BaseException:
        staged.discard()
        raise
    return staged.take()


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
            _map(kept, folder)
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
                for name in _names(about):
                    _link(self._place / name, self._folder / name)
            elif self._place is not None:
                _take(about, self._folder)
            if self._source is not None:
                keep_tokenizer(self._source.tokenizer, self._folder, self._source.format.template)
            if not self._is_written:
                _write_about(about, self._folder)
        return _map(about, self._folder)

    def discard(self) -> None:
        """Removes them; what the folder has stays as it is."""
        if self._place is not None and not self._cached:
            remove(self._folder / (_TOKENS + NEW))


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
        about = _made(source, folder / (_TOKENS + NEW), tell)
    except BaseException:
        remove(folder / (_TOKENS + NEW))
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


def _names(about: TokensAbout) -> tuple[str, ...]:
    """Returns the files of tokens."""
    beside = ((DOCUMENTS, bool(about.num_documents)), (ANSWERS, about.has_answers))
    return (_TOKENS, *(name for name, is_there in beside if is_there))


def _take(about: TokensAbout, folder: Path) -> None:
    """Gives files that were written whole their names."""
    for name in _names(about):
        os.replace(folder / (name + NEW), folder / name)


def keep_tokenizer(tokenizer: Tokenizer, folder: Path, template: str = "") -> None:
    """Keeps what an export needs: the tokenizer's file, and what makes a text of a chat."""
    if tokenizer.content is not None:
        (folder / TOKENIZER).write_bytes(tokenizer.content)
    if template:
        (folder / CHAT_TEMPLATE).write_text(template, encoding="utf-8")


def open_tokens(folder: Path) -> TokenSet:
    """Opens the tokens that `prepare_tokens` left in a folder. Quick: nothing is read but `tokens.json`.

    Raises:
        DataError: there are none, or their file has changed.
    """
    about = read_about(folder)
    if about is None:
        raise DataError(f"{folder} has no tokens ({_ABOUT}). Start the run again, which prepares them.")
    return _map(about, folder)


def read_about(folder: Path) -> TokensAbout | None:
    """Returns the description of the tokens in a folder, or None if it has none of a version that is known."""
    try:
        return msgspec.json.decode((folder / _ABOUT).read_bytes(), type=TokensAbout)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # of another version, or cut short: made again


def _write_about(about: TokensAbout, folder: Path) -> TokensAbout:
    temporary = folder / (_ABOUT + ".new")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(about), indent=2))
    os.replace(temporary, folder / _ABOUT)
    return about


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
    about = _about(source, path=_TOKENS, dtype=dtype, done=done)
    tokens = TokenSet(about, map_ids(output, dtype, source.named), *_beside(about, output.parent, NEW))
    return msgspec.structs.replace(about, count=len(tokens.ids), fingerprint=_fingerprint(tokens))


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
                _map(about, place)
                return about
        about = _made(source, place / (_TOKENS + NEW), tell)
        _take(about, place)
        return _write_about(about, place)


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
    return msgspec.structs.replace(about, count=len(ids), fingerprint=_fingerprint(TokenSet(about, ids)))


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


def _fingerprint(tokens: TokenSet) -> str:
    """Returns the SHA-256 of ids, of documents' ends, and of what is learned; see `TokensAbout.fingerprint`."""
    digest = hashlib.sha256(f"{tokens.ids.dtype.str}\0{len(tokens.ids)}\0".encode())
    for array in (tokens.ids, tokens.documents, tokens.answers):
        for chunk in () if array is None else chunks(array):
            digest.update(np.ascontiguousarray(chunk).data)
    return digest.hexdigest()


def _map(about: TokensAbout, folder: Path) -> TokenSet:
    path = folder / about.path
    ids = map_ids(path, about.dtype, f"the tokens of data.source = {about.source!r}")
    documents, answers = _beside(about, folder)
    for found, count in ((ids, about.count), (documents, about.num_documents), (answers, about.count)):
        if found is not None and len(found) != count:
            raise DataError(
                f"{path} holds {len(ids)} tokens, but {folder / _ABOUT} says {about.count}. "
                "The file has changed: start the run again in a new run folder."
            )
    return TokenSet(about, ids, documents, answers)


def _beside(
    about: TokensAbout, folder: Path, ending: str = ""
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8] | None]:
    """Maps the ends of documents, and what is learned, as far as there are any."""
    try:
        documents = np.memmap(folder / (DOCUMENTS + ending), "<i8", "r") if about.num_documents else _NO_DOCUMENTS
        answers = np.memmap(folder / (ANSWERS + ending), np.uint8, "r") if about.has_answers else None
    except (OSError, ValueError) as error:
        raise DataError(f"cannot map what belongs to {folder / about.path} ({error}). Remove {folder}.") from error
    return documents, answers
