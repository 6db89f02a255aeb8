"""A job's tokens as they lie in a folder, opened: memory-mapped, read-only.

`tokens.bin` has the ids (little-endian, one after the other), `tokens.json` says what they are; beside them, where
windows need to know, are where documents end and which tokens are learned.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from planaria.data.reading.sources import DataError
from planaria.data.tokens.encoding import ANSWERS, DOCUMENTS
from planaria.data.tokens.token_files import TokenArray, chunks, map_ids
from planaria.job.history import SHUFFLED

TOKENS = "tokens.bin"
"""Name of the file of ids."""

_ABOUT = "tokens.json"
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


def open_tokens(folder: Path) -> TokenSet:
    """Opens the tokens that `prepare_tokens` left in a folder. Quick: nothing is read but `tokens.json`.

    Raises:
        DataError: there are none, or their file has changed.
    """
    about = read_about(folder)
    if about is None:
        raise DataError(f"{folder} has no tokens ({_ABOUT}). Start the run again, which prepares them.")
    return map_tokens(about, folder)


def read_about(folder: Path) -> TokensAbout | None:
    """Returns the description of the tokens in a folder, or None if it has none of a version that is known."""
    try:
        return msgspec.json.decode((folder / _ABOUT).read_bytes(), type=TokensAbout)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # of another version, or cut short: made again


def write_about(about: TokensAbout, folder: Path) -> TokensAbout:
    """Writes the description of the tokens in a folder, whole or not at all, and returns it."""
    temporary = folder / (_ABOUT + ".new")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(about), indent=2))
    os.replace(temporary, folder / _ABOUT)
    return about


def fingerprint_of(tokens: TokenSet) -> str:
    """Returns the SHA-256 of ids, of documents' ends, and of what is learned; see `TokensAbout.fingerprint`."""
    digest = hashlib.sha256(f"{tokens.ids.dtype.str}\0{len(tokens.ids)}\0".encode())
    for array in (tokens.ids, tokens.documents, tokens.answers):
        for chunk in () if array is None else chunks(array):
            digest.update(np.ascontiguousarray(chunk).data)
    return digest.hexdigest()


def map_tokens(about: TokensAbout, folder: Path) -> TokenSet:
    """Maps the tokens of a folder. Raises DataError: they are not there as they were described."""
    path = folder / about.path
    ids = map_ids(path, about.dtype, f"the tokens of data.source = {about.source!r}")
    documents, answers = map_beside(about, folder)
    for found, count in ((ids, about.count), (documents, about.num_documents), (answers, about.count)):
        if found is not None and len(found) != count:
            raise DataError(
                f"{path} holds {len(ids)} tokens, but {folder / _ABOUT} says {about.count}. "
                "The file has changed: start the run again in a new run folder."
            )
    return TokenSet(about, ids, documents, answers)


def map_beside(
    about: TokensAbout, folder: Path, ending: str = ""
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8] | None]:
    """Maps the ends of documents, and what is learned, as far as there are any."""
    try:
        documents = np.memmap(folder / (DOCUMENTS + ending), "<i8", "r") if about.num_documents else _NO_DOCUMENTS
        answers = np.memmap(folder / (ANSWERS + ending), np.uint8, "r") if about.has_answers else None
    except (OSError, ValueError) as error:
        raise DataError(f"cannot map what belongs to {folder / about.path} ({error}). Remove {folder}.") from error
    return documents, answers


def file_names(about: TokensAbout) -> tuple[str, ...]:
    """Returns the files of tokens."""
    beside = ((DOCUMENTS, bool(about.num_documents)), (ANSWERS, about.has_answers))
    return (TOKENS, *(name for name, is_there in beside if is_there))
