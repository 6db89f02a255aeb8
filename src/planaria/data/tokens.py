"""Keeps a job's tokens on disk: written once per run folder, then memory-mapped by every worker.

`prepare_tokens` writes `tokens.bin` (little-endian ids, one after the other) and `tokens.json` (what they
are). A source that is a token file already is mapped where it lies, and never copied or changed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from planaria.data.sources import NAMED_SOURCES, DataError, find_text_files, is_token_file, read_texts
from planaria.data.text import check_text, check_tokens
from planaria.data.tokenizer import Tokenizer, id_dtype, load_tokenizer
from planaria.job.settings import DataSection

TokenArray = npt.NDArray[np.unsignedinteger[Any]] | npt.NDArray[np.signedinteger[Any]]

_TOKENS = "tokens.bin"
_ABOUT = "tokens.json"
TOKENIZER = "tokenizer.json"
"""Copy of the job's tokenizer, if it has one, so that a run's export needs nothing outside of its folder."""

_FORMAT = 2
_CHUNK_TOKENS = 1 << 22
_MAX_CHUNKS = 256
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


def prepare_tokens(section: DataSection, folder: Path, check: Check = lambda about: None) -> TokenSet:
    """Writes the tokens of a job to a folder, or finds them there already.

    Args:
        section: the job's [data].
        folder: made if absent.
        check: asked before other tokens in the folder are replaced.

    Raises:
        DataError: the source or the tokenizer cannot be read, or there is nothing in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = load_tokenizer(section.tokenizer)
    token_file = is_token_file(section.source)
    files = (Path(section.source),) if token_file else find_text_files(section.source)
    key = _key(tokenizer, files, section.source)
    kept = read_about(folder)
    if kept is not None and kept.key == key:
        try:
            tokens = _map(kept, folder)
        except DataError:
            pass  # tokens.bin was removed or cut short: it is made again
        else:
            check(kept)
            return tokens
    if token_file:
        about = _describe_token_file(section, tokenizer, files[0], key)
        check(about)
    else:
        for file in files if section.source not in NAMED_SOURCES else ():
            check_text(file, f"data.source = {section.source!r}")
        about = _write_tokens(section, tokenizer, files, folder, key, check)
    if tokenizer.content is not None:
        (folder / TOKENIZER).write_bytes(tokenizer.content)
    temporary = folder / (_ABOUT + ".new")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(about), indent=2))
    os.replace(temporary, folder / _ABOUT)
    return _map(about, folder)


def open_tokens(folder: Path) -> TokenSet:
    """Opens the tokens that `prepare_tokens` left in a folder. Quick: nothing is read but `tokens.json`.

    Raises:
        DataError: there are none, or their file has changed.
    """
    about = read_about(folder)
    if about is None:
        raise DataError(f"{folder} has no tokens ({_ABOUT}). Start the run again, which prepares them.")
    return _map(about, folder)


def _key(tokenizer: Tokenizer, files: tuple[Path, ...], source: str) -> str:
    digest = hashlib.sha256(f"{_FORMAT}\0{source}\0{tokenizer.identity}\0".encode())
    for file in files:
        try:
            status = file.stat()
        except OSError as error:
            raise DataError(
                f"data.source = {source!r}: cannot open {file} ({error.strerror}). Correct the path."
            ) from error
        digest.update(f"{file.resolve()}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def _write_tokens(
    section: DataSection, tokenizer: Tokenizer, files: tuple[Path, ...], folder: Path, key: str, check: Check
) -> TokensAbout:
    dtype = np.dtype(id_dtype(tokenizer.vocab_size)).newbyteorder("<")
    temporary = folder / (_TOKENS + ".new")
    count = 0
    size_bytes = 0
    with temporary.open("wb") as out:
        for text in read_texts(files):
            ids = tokenizer.encode(text)
            size_bytes += len(text)
            count += len(ids)
            out.write(ids.astype(dtype, copy=False).tobytes())
    if size_bytes == 0:
        temporary.unlink()
        raise DataError(f"data.source = {section.source!r} is empty ({len(files)} files). Give files with text.")
    about = _about(section, tokenizer, path=_TOKENS, ids=np.memmap(temporary, dtype=dtype, mode="r"), key=key)
    try:
        check(about)
    except BaseException:
        temporary.unlink()
        raise
    os.replace(temporary, folder / _TOKENS)
    return about


def _describe_token_file(section: DataSection, tokenizer: Tokenizer, path: Path, key: str) -> TokensAbout:
    field = f"data.source = {section.source!r}"
    if path.stat().st_size == 0:
        raise DataError(f"{field} is empty. Give a file of token ids.")
    dtype = "<u2" if path.suffix == ".bin" else ""
    if path.suffix == ".bin":
        check_tokens(path, field)
    ids = _load(path.resolve(), dtype, field)
    about = _about(section, tokenizer, path=str(path.resolve()), ids=ids, key=key)
    highest = max(int(chunk.max()) for chunk in _chunks(ids))
    lowest = min(int(chunk.min()) for chunk in _chunks(ids))
    if highest >= tokenizer.vocab_size or lowest < 0:
        raise DataError(
            f"{field} holds ids from {lowest} to {highest}, but data.tokenizer = {section.tokenizer!r} has "
            f"{tokenizer.vocab_size} tokens. Give the tokenizer that the file was made with."
        )
    return about


def _about(section: DataSection, tokenizer: Tokenizer, *, path: str, ids: TokenArray, key: str) -> TokensAbout:
    digest = hashlib.sha256(f"{ids.dtype.str}\0{len(ids)}\0".encode())
    for chunk in _chunks(ids):
        digest.update(np.ascontiguousarray(chunk).data)
    return TokensAbout(
        source=section.source,
        tokenizer=section.tokenizer,
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


def _chunks(ids: TokenArray) -> Iterator[TokenArray]:
    """Yields all of the ids in pieces; of a very long array, evenly spaced pieces with the first and the last."""
    starts = range(0, len(ids), _CHUNK_TOKENS)
    if len(starts) > _MAX_CHUNKS:
        starts_kept = [starts[index * (len(starts) - 1) // (_MAX_CHUNKS - 1)] for index in range(_MAX_CHUNKS)]
    else:
        starts_kept = list(starts)
    for start in starts_kept:
        yield ids[start : start + _CHUNK_TOKENS]


def read_about(folder: Path) -> TokensAbout | None:
    """Returns the description of the tokens in a folder, or None if it has none of a version that is known."""
    try:
        return msgspec.json.decode((folder / _ABOUT).read_bytes(), type=TokensAbout)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # of another version, or cut short: made again


def _map(about: TokensAbout, folder: Path) -> TokenSet:
    path = folder / about.path
    ids = _load(path, about.dtype, f"the tokens of data.source = {about.source!r}")
    if len(ids) != about.count:
        raise DataError(
            f"{path} holds {len(ids)} tokens, but {folder / _ABOUT} says {about.count}. "
            "The file has changed: start the run again in a new run folder."
        )
    return TokenSet(about, ids)


def _load(path: Path, dtype: str, field: str) -> TokenArray:
    try:
        if path.suffix == ".npy":
            ids: TokenArray = np.load(path, mmap_mode="r", allow_pickle=False)
        else:
            ids = np.memmap(path, dtype=dtype, mode="r")
    except (OSError, ValueError) as error:
        raise DataError(f"{field}: cannot map {path} ({error}). Give a file of token ids.") from error
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer) or len(ids) == 0:
        raise DataError(
            f"{field}: {path} holds an array of shape {ids.shape} and type {ids.dtype}. "
            "Save a one-dimensional array of integers that is not empty."
        )
    return ids
