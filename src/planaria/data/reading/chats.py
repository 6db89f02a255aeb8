"""Makes texts of rows that are examples: chats by a template, and pairs; says which part of each is the answer.

Templates are Jinja's, rendered by transformers, so a chat has the text that `apply_chat_template` gives it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from planaria.data.reading.rows import BadRow, Piece, Record, column_pieces, encoded, value_of
from planaria.data.reading.sources import DataError
from planaria.job.sections.data import DataSection

CHATML: Final = "chatml"
_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TEMPLATE, _CONFIG = "chat_template.jinja", "tokenizer_config.json"
_GENERATION = re.compile(r"{%-?\s*generation\s*-?%}")
_ANSWERS: Final = "assistant"
"""The role whose messages are learned."""


class RowFormat(Protocol):
    """Makes documents of rows."""

    @property
    def columns(self) -> Mapping[str, str]:
        """The columns that are read, and the field of the job that names each."""
        ...

    @property
    def identity(self) -> str:
        """Says what else than the job's fields changes the texts; "": nothing."""
        ...

    @property
    def template(self) -> str:
        """What makes a text of a chat; "": the rows are none."""
        ...

    @property
    def ends_with_separator(self) -> bool:
        """Whether the tokenizer's separator may come after each document."""
        ...

    def pieces(self, record: Record) -> Iterable[Piece]:
        """Returns a row's document. Raises BadRow: it has none."""
        ...


@dataclass(frozen=True, slots=True)
class TextRows:
    """Rows with a text in a column."""

    column: str
    identity: str = ""
    template: str = ""
    ends_with_separator: bool = True

    @property
    def columns(self) -> Mapping[str, str]:
        return {self.column: "data.column"}

    def pieces(self, record: Record) -> Iterable[Piece]:
        return column_pieces(record, self.column)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Rows with a prompt, and what is to come after it."""

    prompt: str
    completion: str
    identity: str = ""
    template: str = ""
    ends_with_separator: bool = True

    @property
    def columns(self) -> Mapping[str, str]:
        return {self.prompt: "data.prompt", self.completion: "data.completion"}

    def pieces(self, record: Record) -> Iterable[Piece]:
        prompt, completion = (encoded(record, column) for column in (self.prompt, self.completion))
        if not completion:
            raise BadRow(f"{self.completion!r} is empty: there is nothing to learn")
        return [Piece(prompt + completion, answers=((len(prompt), len(prompt) + len(completion)),))]


@dataclass(frozen=True, slots=True)
class Chats:
    """Rows with a list of messages.

    Attributes:
        column: that holds it.
        template: of Jinja.
        special_tokens: what the template calls the tokenizer's tokens, and their texts.
        named: what messages call the template.
    """

    column: str
    template: str
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    named: str = "data.chat_template"
    ends_with_separator: bool = False

    @property
    def columns(self) -> Mapping[str, str]:
        return {self.column: "data.messages"}

    @property
    def identity(self) -> str:
        tokens = msgspec.json.encode(self.special_tokens, order="deterministic")
        return hashlib.sha256(self.template.encode() + b"\0" + tokens).hexdigest()

    def pieces(self, record: Record) -> Iterable[Piece]:
        messages = _messages(record, self.column)
        text, answers = self._answers(messages)
        if not answers:
            raise BadRow(f"{self.column!r} has no message of the role {_ANSWERS!r}: there is nothing to learn")
        # Texts are cut by characters, and documents are bytes.
        spans = tuple((len(text[:begin].encode()), len(text[:end].encode())) for begin, end in answers)
        return [Piece(text.encode(), answers=spans)]

    def _answers(self, messages: Sequence[Mapping[str, Any]]) -> tuple[str, list[tuple[int, int]]]:
        """Returns a chat's text, and where the answers are in it."""
        if _GENERATION.search(self.template):
            texts, spans = self._render(messages, return_assistant_tokens_mask=True)
            return texts[0], [(begin, end) for begin, end in spans[0] if begin < end]
        whole = self._render(messages)[0][0]
        answers = []
        for number, message in enumerate(messages):
            if message["role"] != _ANSWERS:
                continue
            before = self._render(messages[:number], add_generation_prompt=True)[0][0]
            after = self._render(messages[: number + 1])[0][0]
            if not (whole.startswith(after) and after.startswith(before)):
                raise DataError(
                    f"{self.named} writes message {number + 1} of a chat in another way where more come after it, so "
                    "the answers in a text cannot be told. Mark them in the template by {% generation %} and "
                    "{% endgeneration %}."
                )
            answers.append((len(before), len(after)))
        return whole, answers

    def _render(self, messages: Sequence[Mapping[str, Any]], **options: bool) -> Any:
        from jinja2 import TemplateError
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            return render_jinja_template([messages], chat_template=self.template, **options, **self.special_tokens)
        except (TemplateError, TypeError, KeyError, ValueError) as error:
            raise BadRow(f"{self.named} cannot write it ({' '.join(str(error).split())})") from error


def row_format(section: DataSection) -> RowFormat:
    """Returns what makes documents of a job's rows.

    Raises:
        DataError: a chat has no template, or one that cannot be read.
    """
    if section.prompt:
        return Pairs(section.prompt, section.completion)
    if section.messages:
        return _chats(section)
    return TextRows(section.column)


def _chats(section: DataSection) -> Chats:
    tokenizer = Path(section.tokenizer)
    folder = tokenizer if tokenizer.is_dir() else tokenizer.parent if tokenizer.is_file() else None
    config = _config(folder)
    tokens = {
        name: text if isinstance(text, str) else text.get("content", "")
        for name, text in config.items()
        if name.endswith("_token") and isinstance(text, str | dict)
    }
    if section.chat_template == CHATML:
        template, named = _CHATML, f"data.chat_template = {CHATML!r}"
    elif section.chat_template:
        named = f"data.chat_template = {section.chat_template!r}"
        template = _read(Path(section.chat_template), named)
    else:
        named = f"the chat template of data.tokenizer = {section.tokenizer!r}"
        template = _own_template(folder, config, named)
        if not template:
            raise DataError(
                f"data.tokenizer = {section.tokenizer!r} has no chat template ({_TEMPLATE}, or in {_CONFIG}, beside "
                f'it), and data.messages needs one. Set data.chat_template to a Jinja file, or to "{CHATML}".'
            )
    _check(template, named)
    return Chats(section.messages, template, tokens, named)


def _own_template(folder: Path | None, config: Mapping[str, Any], named: str) -> str:
    if folder is not None and (folder / _TEMPLATE).is_file():
        return _read(folder / _TEMPLATE, named)
    found = config.get("chat_template") or ""
    if isinstance(found, list):
        by_name = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = by_name.get("default") or ""
    return found if isinstance(found, str) else ""


def _config(folder: Path | None) -> dict[str, Any]:
    path = None if folder is None else folder / _CONFIG
    if path is None or not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}). Make it again, or move it away.") from error


def _read(path: Path, named: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{named}: {path} cannot be read ({reason}). Give the path of a Jinja file.") from error


def _check(template: str, named: str) -> None:
    from jinja2 import TemplateSyntaxError
    from transformers.utils.chat_template_utils import _compile_jinja_template

    try:
        _compile_jinja_template(template)
    except TemplateSyntaxError as error:
        raise DataError(f"{named} is no template of Jinja (line {error.lineno}: {error}). Correct it.") from error


def _messages(record: Record, column: str) -> Sequence[Mapping[str, Any]]:
    messages = value_of(record, column)
    if not isinstance(messages, list) or not messages:
        raise BadRow(f"{column!r} is no list of messages")
    for number, message in enumerate(messages, 1):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadRow(f"message {number} of {column!r} has no role")
    return [{name: value for name, value in message.items() if value is not None} for message in messages]
