"""Keeps a job's tokens on disk: written once per run folder, then memory-mapped by every worker.

`prepare_tokens` writes `tokens.bin` (little-endian ids, one after the other) and `tokens.json` (what they
are). A source that is a token file already is mapped where it lies, and never copied or changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import xxhash

from planaria.data.encoding import Encoding, Progress, Tell
from planaria.data.sources import DataError, Kind, SourceFile, find_files
from planaria.data.text import check_file
from planaria.data.token_files import TokenArray, check_ids, chunks, map_ids, open_token_file
from planaria.data.tokenizer import Tokenizer, id_dtype, load_tokenizer
from planaria.job.history import KEYED, SHUFFLED
from planaria.job.registry import DataSource
from planaria.job.settings import DataSection

_TOKENS = "tokens.bin"
_NEW_TOKENS = "tokens.bin.new"
_ABOUT = "tokens.json"
TOKENIZER = "tokenizer.json"
"""Copy of the job's tokenizer, if it has one, so that a run's export needs nothing outside of its folder."""

_FORMAT = 2
_OPTIONS = ("column", "on_bad_row", "eos", "token_dtype")
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


Check = Callable[[TokensAbout], None]
"""Raises what speaks against tokens, before they replace others."""


class TokenSet:
    """The tokens of a job.

    Attributes:
        about: what they are.
        ids: all of them, one after the other, memory-mapped and read-only.
    """

    def __init__(self, about: TokensAbout, ids: TokenArray) -> None:
        self.about = about
        self.ids = ids

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
        step = _QUICK_BYTES // self.ids.dtype.itemsize
        last = max(0, len(self) - step)
        for start in sorted({index * last // (_QUICK_PIECES - 1) for index in range(_QUICK_PIECES)}):
            digest.update(np.ascontiguousarray(self.ids[start : start + step]).data)
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
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = load_tokenizer(section.tokenizer)
    files = find_files(section.source, field)
    named = f"{field} = {section.source!r}"
    key, size_bytes = _key(tokenizer, files, section, named)
    kept = read_about(folder)
    if kept is not None and kept.key == key:
        try:
            tokens = _map(kept, folder)
        except DataError:
            pass  # tokens.bin was removed or cut short: it is made again
        else:
            check(kept)
            if kept.order == order:
                return tokens
            return _map(_write_about(msgspec.structs.replace(kept, order=order), folder), folder)
    source = Encoding(section=section, tokenizer=tokenizer, files=files, named=named)
    if files[0].kind is Kind.TOKENS and len(files) == 1:
        about = _describe_token_file(source, key)
        check(about)
    elif cache is not None and size_bytes >= DATA_CACHE_BYTES:
        about = _from_cache(source, cache / key, key, tell)
        check(about)
        _link(cache / key / _TOKENS, folder / _TOKENS)
    else:
        try:
            about = _made(source, folder / _NEW_TOKENS, key, tell)
            check(about)
        except BaseException:
            (folder / _NEW_TOKENS).unlink(missing_ok=True)
            raise
        os.replace(folder / _NEW_TOKENS, folder / _TOKENS)
    if tokenizer.content is not None:
        (folder / TOKENIZER).write_bytes(tokenizer.content)
    return _map(_write_about(msgspec.structs.replace(about, order=order), folder), folder)


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


def _key(tokenizer: Tokenizer, files: tuple[SourceFile, ...], section: DataSection, named: str) -> tuple[str, int]:
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
    return digest.hexdigest(), size_bytes


def _made(source: Encoding, output: Path, key: str, tell: Tell) -> TokensAbout:
    """Makes the tokens of a source into a file."""
    if source.section.source not in [*DataSource]:
        for file in source.files:
            check_file(file, source.named)
    if source.files[0].kind is Kind.TOKENS:
        _copy_tokens(source, output)
        done = Progress()
    else:
        done = source.write(output, tell)
    dtype = np.dtype(id_dtype(source.tokenizer.vocab_size)).newbyteorder("<").str
    about = _about(source, path=_TOKENS, ids=map_ids(output, dtype, source.named), key=key)
    return msgspec.structs.replace(about, bad_rows=done.bad_rows, first_bad_row=done.first_bad)


def _copy_tokens(source: Encoding, output: Path) -> None:
    dtype = np.dtype(id_dtype(source.tokenizer.vocab_size)).newbyteorder("<")
    with output.open("wb") as out:
        for file in source.files:
            ids = open_token_file(file.path, source.section, source.named)
            check_ids(ids, source.tokenizer.vocab_size, source.section.tokenizer, f"{source.named}: {file.path}")
            for start in range(0, len(ids), _COPIED_TOKENS):
                out.write(ids[start : start + _COPIED_TOKENS].astype(dtype).data)


def _from_cache(source: Encoding, place: Path, key: str, tell: Tell) -> TokensAbout:
    """Returns what a folder of the cache has, made there if it is not there whole."""
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        about = read_about(place)
        if about is not None:
            with contextlib.suppress(DataError):
                _map(about, place)
                return about
        about = _made(source, place / _NEW_TOKENS, key, tell)
        os.replace(place / _NEW_TOKENS, place / _TOKENS)
        return _write_about(about, place)


def _link(made: Path, wanted: Path) -> None:
    """Gives a file a further name, or copies it to where it cannot have one."""
    temporary = wanted.with_name(wanted.name + ".new")
    temporary.unlink(missing_ok=True)
    try:
        os.link(made, temporary)
    except OSError:
        shutil.copyfile(made, temporary)
    os.replace(temporary, wanted)


def _describe_token_file(source: Encoding, key: str) -> TokensAbout:
    (file,) = source.files
    ids = open_token_file(file.path.resolve(), source.section, source.named)
    check_ids(ids, source.tokenizer.vocab_size, source.section.tokenizer, source.named)
    return _about(source, path=str(file.path.resolve()), ids=ids, key=key)


def _about(source: Encoding, *, path: str, ids: TokenArray, key: str) -> TokensAbout:
    tokenizer = source.tokenizer
    digest = hashlib.sha256(f"{ids.dtype.str}\0{len(ids)}\0".encode())
    for chunk in chunks(ids):
        digest.update(np.ascontiguousarray(chunk).data)
    return TokensAbout(
        source=source.section.source,
        tokenizer=source.section.tokenizer,
        path=path,
        dtype=ids.dtype.str,
        count=len(ids),
        vocab_size=tokenizer.vocab_size,
        mask_token_id=tokenizer.mask_token_id,
        pad_token_id=tokenizer.pad_token_id,
        fingerprint=digest.hexdigest(),
        key=key,
        tokenizer_identity=tokenizer.identity,
    )


def _map(about: TokensAbout, folder: Path) -> TokenSet:
    path = folder / about.path
    ids = map_ids(path, about.dtype, f"the tokens of data.source = {about.source!r}")
    if len(ids) != about.count:
        raise DataError(
            f"{path} holds {len(ids)} tokens, but {folder / _ABOUT} says {about.count}. "
            "The file has changed: start the run again in a new run folder."
        )
    return TokenSet(about, ids)
