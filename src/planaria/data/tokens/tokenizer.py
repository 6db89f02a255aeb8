"""Turns text into token ids: bytes, or a Hugging Face tokenizer.json."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from planaria.data.reading.sources import DataError
from planaria.job.suggestions import hub_hint

BYTES = "bytes"
SEPARATOR_ID = 256
MASK_ID = 257
PAD_ID = 258

SEPARATORS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
MASKS = ("[MASK]", "<mask>")
PADS = ("[PAD]", "<pad>", "<|padding|>")

Ids = npt.NDArray[Any]
Marks = npt.NDArray[np.uint8]
"""1 for each token that is learned, 0 for others."""
Spans = Sequence[tuple[int, int]]
"""Where parts of a text begin and end, in bytes."""


class Tokenizer(Protocol):
    """The interface of a tokenizer as preparing and sampling use it."""

    @property
    def identity(self) -> str:
        """Identifies a tokenizer: two with one identity give the same ids."""
        ...

    @property
    def separator_id(self) -> int | None:
        """The id that ends a document."""
        ...

    @property
    def content(self) -> bytes | None:
        """The bytes of its tokenizer.json, or None for a tokenizer without such a file."""
        ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def mask_token_id(self) -> int | None: ...

    @property
    def pad_token_id(self) -> int | None: ...

    def encode(self, texts: Sequence[bytes]) -> list[Ids]:
        """Returns the ids of each text, on all cores."""
        ...

    def encode_marked(self, texts: Sequence[bytes], answers: Sequence[Spans]) -> list[tuple[Ids, Marks]]:
        """Returns the ids of each text, and which of them have any of its answers in them.

        Args:
            texts: UTF-8.
            answers: of each, where they are.
        """
        ...


@dataclass(frozen=True, slots=True)
class ByteTokenizer:
    """A tokenizer whose ids 0 to 255 are bytes; then come separator, mask and pad."""

    identity: str = BYTES
    vocab_size: int = 259
    mask_token_id: int | None = MASK_ID
    pad_token_id: int | None = PAD_ID
    separator_id: int | None = SEPARATOR_ID
    content: bytes | None = None

    def encode(self, texts: Sequence[bytes]) -> list[Ids]:
        return [np.frombuffer(text, dtype=np.uint8).astype(np.uint16) for text in texts]

    def encode_marked(self, texts: Sequence[bytes], answers: Sequence[Spans]) -> list[tuple[Ids, Marks]]:
        places = [np.arange(len(text)) for text in texts]
        marks = [_marks(at, at + 1, spans) for at, spans in zip(places, answers, strict=True)]
        return list(zip(self.encode(texts), marks, strict=True))


class FileTokenizer:
    """A Hugging Face tokenizer.json, run by the `tokenizers` library."""

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer as Backend

        try:
            content = path.read_bytes()
            self._backend: Any = Backend.from_str(content.decode())
        except Exception as error:  # tokenizers raises plain Exception
            raise DataError(
                f"data.tokenizer = {str(path)!r} cannot be loaded ({error}). "
                f'Give the path of a tokenizer.json, or "{BYTES}".'
            ) from error
        self.content: bytes | None = content
        self.identity = hashlib.sha256(content).hexdigest()
        ids = self._backend.get_vocab(with_added_tokens=True)
        self.vocab_size: int = max(ids.values(), default=-1) + 1
        self.mask_token_id: int | None = next((ids[name] for name in MASKS if name in ids), None)
        self.pad_token_id: int | None = next((ids[name] for name in PADS if name in ids), None)
        self.separator_id: int | None = next((ids[name] for name in SEPARATORS if name in ids), None)
        self._dtype = id_dtype(self.vocab_size)

    def encode(self, texts: Sequence[bytes]) -> list[Ids]:
        decoded = [text.decode(errors="replace") for text in texts]
        encodings = self._backend.encode_batch_fast(decoded, add_special_tokens=False)
        return [np.array(encoding.ids, dtype=self._dtype) for encoding in encodings]

    def encode_marked(self, texts: Sequence[bytes], answers: Sequence[Spans]) -> list[tuple[Ids, Marks]]:
        encodings = self._backend.encode_batch([text.decode() for text in texts], add_special_tokens=False)
        found = []
        for text, spans, encoding in zip(texts, answers, encodings, strict=True):
            offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)  # in characters
            in_characters = [(len(text[:begin].decode()), len(text[:end].decode())) for begin, end in spans]
            marks = _marks(offsets[:, 0], offsets[:, 1], in_characters)
            found.append((np.array(encoding.ids, dtype=self._dtype), marks))
        return found


def _marks(begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], spans: Spans) -> Marks:
    """Marks what overlaps any of the spans."""
    marks = np.zeros(len(begins), dtype=np.uint8)
    for begin, end in spans:
        marks |= ((ends > begin) & (begins < end) & (ends > begins)).astype(np.uint8)
    return marks


def id_dtype(vocab_size: int) -> type[np.uint16] | type[np.uint32]:
    """Returns the smaller dtype that holds every id."""
    return np.uint16 if vocab_size <= 2**16 else np.uint32


def load_tokenizer(tokenizer: str) -> Tokenizer:
    """Loads the tokenizer that `data.tokenizer` names.

    Raises:
        DataError: the file is missing or is not a tokenizer.
    """
    if tokenizer == BYTES:
        return ByteTokenizer()
    path = Path(tokenizer)
    if path.is_dir():
        path /= "tokenizer.json"
    if not path.is_file():
        raise DataError(
            f"data.tokenizer = {tokenizer!r}: there is no such file (from {Path.cwd()}). "
            f'Give the path of a tokenizer.json, or "{BYTES}".{hub_hint(tokenizer, "tokenizer.json")}'
        )
    return FileTokenizer(path)
