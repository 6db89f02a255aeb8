"""[data]: what a model is trained on, and how it is read."""

from __future__ import annotations

import enum
import math
from typing import Any

import msgspec

from planaria.job.registry import DataSource
from planaria.job.sections.section import Section
from planaria.job.values import at_least, check_config, is_dataset, is_hub_stream, path, positive, refuse, shown, text

DOCUMENT_POSITIONS = "document_positions"
"""Name of the batch's tensor that tells models of documents that are apart: each token's position in its document."""

SOURCE_MASK = "source_mask"
"""Name of the batch's tensor that tells an encoder what to read: 1 for each token, 0 for what fills up."""

STREAM_FIELDS = ("shuffle_buffer", "stream_disk_gb", "repeat")
"""Fields of [data] that are for streams alone."""


class TokenDType(enum.StrEnum):
    """Type of the ids in a .bin file, little-endian. One with an .idx file beside it (Megatron) says its own."""

    UINT16 = "uint16"
    UINT32 = "uint32"


class OnBadRow(enum.StrEnum):
    """What to do about a row that is broken or lacks its text. `skip`: leave it out, and count it."""

    REFUSE = "refuse"
    SKIP = "skip"


class Packing(enum.StrEnum):
    """How documents come into windows of train.sequence_length.

    `across`: one after the other, cut where a window is full, and attention sees all of a window. `apart`: likewise,
    but no document sees another in its window, and positions begin anew with each; of chats and pairs, as many whole
    ones as a window holds. `pad`: one document a window, which is filled up. `translate`: a pair, of which an encoder
    reads the prompt and a decoder learns the completion, each of up to sequence_length tokens.
    """

    ACROSS = "across"
    APART = "apart"
    PAD = "pad"
    TRANSLATE = "translate"


class TooLong(enum.StrEnum):
    """What to do about an example that no window holds. `cut`: leave out its end. `drop`: leave it out. Both count."""

    CUT = "cut"
    DROP = "drop"


class SourceSection(Section, frozen=True):
    """[[data.sources]]

    One of several sources of texts, in place of data.source. All of them have one tokenizer and one packing. The fields
    that say what of a row is read are each source's own; those of [data] are for eval.source.

    Attributes:
        source: as data.source.
        weight: samples come from the sources in the ratio of their weights, each source with epochs of its own.
        column: as data.column.
        messages: as data.messages.
        prompt: as data.prompt.
        completion: as data.completion.
        chat_template: as data.chat_template.
    """

    source: str
    weight: float = 1.0
    column: str = "text"
    messages: str = ""
    prompt: str = ""
    completion: str = ""
    chat_template: str = ""


class DataSection(Section, frozen=True):
    """[data]

    Not used with an emulated device.

    Attributes:
        source: "python-stdlib", or a file, a folder or a glob of text, JSON Lines, Parquet, Arrow or token ids; see
            docs/howto/own-data.md. Or a URL of them, or "hf://OWNER/NAME", a dataset of the Hugging Face hub. Or
            "module:function" returning a map-style dataset, or a stream; see docs/howto/own-dataset.md.
        config: keyword arguments of that function. The fields below are for tokens only.
        tokenizer: "bytes", or the path of a Hugging Face tokenizer.json.
        mask_probability: share of tokens that masked-LM models must predict.
        column: of rows, that holds their text; "a.b" is what the column a has under b.
        on_bad_row: what to do about a row that is broken or lacks its text: refuse the data, or skip it and count it.
        eos: whether the tokenizer's separator comes after each document, if it has one.
        token_dtype: type of the ids in a .bin file, unless an .idx file beside it (Megatron) says its own.
        messages: column of rows that are chats: a list of messages, each with a role and a content. The model learns
            what the role assistant says; see docs/howto/chats.md.
        prompt: column of rows that are pairs: a text, after which the model learns the completion.
        completion: column of what comes after the prompt.
        chat_template: path of a Jinja file that makes a text of a chat, or "chatml"; left out: the tokenizer's own.
        packing: how documents come into windows: across, apart, pad or translate; left out: pad for chats and pairs,
            across otherwise.
        too_long: what to do about a chat, a pair or a padded document that no window holds: cut its end off, or drop it
            and count it.
        sources: several sources, each with its weight; see [[data.sources]].
        shuffle_buffer: samples of a stream that are shuffled together; 1: they come in the stream's order.
        stream_disk_gb: of a stream's samples, how many are kept in the run folder; those that are needed again after a
            loss are then read again. 0: all of them.
        repeat: whether a stream that ends before the last step begins anew. Left out, the run fails there.
    """

    source: str = DataSource.PYTHON_STDLIB.value
    config: dict[str, Any] = msgspec.field(default_factory=dict)
    tokenizer: str = "bytes"
    mask_probability: float = 0.15
    column: str = "text"
    on_bad_row: OnBadRow = OnBadRow.REFUSE
    eos: bool = True
    token_dtype: TokenDType = TokenDType.UINT16
    messages: str = ""
    prompt: str = ""
    completion: str = ""
    chat_template: str = ""
    packing: Packing | None = None
    too_long: TooLong = TooLong.CUT
    sources: tuple[SourceSection, ...] = ()
    shuffle_buffer: int = 10_000
    stream_disk_gb: float = 0.0
    repeat: bool = False

    @property
    def parts(self) -> tuple[DataSection, ...]:
        """Returns a section for each of several sources; this one, where there is but one."""
        fields = ("source", "column", "messages", "prompt", "completion", "chat_template")
        return tuple(
            msgspec.structs.replace(self, sources=(), **{name: getattr(one, name) for name in fields})
            for one in self.sources
        ) or (self,)

    @property
    def source_fields(self) -> list[str]:
        """Returns the name of the field that each of `parts` has its source from."""
        return [f"data.sources[{number}].source" for number in range(len(self.sources))] or ["data.source"]

    @property
    def as_no_stream(self) -> DataSection:
        """Returns these without what is for streams alone."""
        none = DataSection()
        return msgspec.structs.replace(self, **{name: getattr(none, name) for name in STREAM_FIELDS})

    @property
    def has_answers(self) -> bool:
        """Whether rows are examples of which a part is learned: chats, or pairs."""
        return bool(self.messages or self.prompt)

    @property
    def windows(self) -> Packing:
        """How documents come into windows."""
        return self.packing or (Packing.PAD if self.has_answers else Packing.ACROSS)

    @property
    def has_examples(self) -> bool:
        """Whether each window holds whole documents."""
        return self.has_answers or self.windows is Packing.PAD


def check_data(data: DataSection) -> None:
    """Refuses a [data] that cannot be. Raises UserError."""
    text("data.source", data.source)
    path("data.tokenizer", data.tokenizer)
    if not 0 < data.mask_probability < 1:
        refuse("data.mask_probability", data.mask_probability, "is not between 0 and 1", "Set for instance 0.15.")
    at_least("data.shuffle_buffer", data.shuffle_buffer, 1)
    if not (data.stream_disk_gb >= 0 and math.isfinite(data.stream_disk_gb)):
        refuse("data.stream_disk_gb", data.stream_disk_gb, "is below 0 or not finite", "Set it to 0 to keep all.")
    if not is_dataset(data.source):
        _check_stream(data)
        check_config("data", data.config, data.source)
        _check_examples(data, data)
        _check_sources(data)
        return
    unheeded = msgspec.structs.replace(data.as_no_stream, source=DataSection().source, config={})
    for name in data.__struct_fields__:
        if getattr(unheeded, name) != getattr(DataSection(), name):
            refuse(
                f"data.{name}", getattr(data, name), f"is for tokens, not for a dataset ({shown(data.source)})",
                "Leave it out, and give the function what it needs in [data.config].",
            )  # fmt: skip


def _check_stream(data: DataSection) -> None:
    """Refuses what a stream of texts cannot be, and its fields where there is none."""
    if not is_hub_stream(data.source):
        for name in STREAM_FIELDS:
            if (value := getattr(data, name)) != getattr(DataSection(), name):
                refuse(f"data.{name}", value, f"is for streams, and {shown(data.source)} is none", "Leave it out.")
    elif data.has_answers or data.windows is not Packing.ACROSS:
        refuse(
            "data.source", data.source, "is a stream, which is packed across documents",
            "Leave out messages, prompt and packing, or read its first rows (rows=N in place of stream=true).",
        )  # fmt: skip


def _check_sources(data: DataSection) -> None:
    if data.sources and data.source != DataSection().source:
        refuse("data.source", data.source, "does not go with [[data.sources]]", "Make it one of them.")
    for number, (given, section) in enumerate(zip(data.sources, data.parts, strict=False)):
        field = f"data.sources[{number}]"
        text(f"{field}.source", given.source)
        if is_dataset(given.source):
            refuse(f"{field}.source", given.source, "is a dataset, and only texts are mixed", "Mix in that dataset.")
        if is_hub_stream(given.source):
            refuse(
                f"{field}.source", given.source, "is a stream, and only texts with an end are mixed",
                "Give its first rows (rows=N in place of stream=true).",
            )  # fmt: skip
        positive(f"{field}.weight", given.weight)
        _check_examples(section, data)


def _check_examples(data: DataSection, whole: DataSection) -> None:
    if data.messages and data.prompt:
        refuse("data.messages", data.messages, f"does not go with data.prompt = {data.prompt!r}", "Give one of them.")
    if bool(data.prompt) != bool(data.completion):
        missing, there = ("completion", "prompt") if data.prompt else ("prompt", "completion")
        refuse(f"data.{there}", getattr(data, there), f"goes with data.{missing}", "Name the columns of both.")
    if data.chat_template:
        path("data.chat_template", data.chat_template)
        if not data.messages:
            refuse("data.chat_template", data.chat_template, "is for chats", 'Set data.messages = "messages".')
    if data.has_answers and data.windows is Packing.ACROSS:
        refuse(
            "data.packing", data.windows.value, "would give windows without an answer",
            f'Set it to "{Packing.PAD.value}" or "{Packing.APART.value}".',
        )  # fmt: skip
    if data.windows is Packing.TRANSLATE and not data.prompt:
        refuse("data.packing", data.windows.value, "is for pairs", "Name the columns data.prompt and data.completion.")
    if data.too_long is not TooLong.CUT and not any(part.has_examples for part in whole.parts):
        refuse(
            "data.too_long", data.too_long.value, "is for chats, for pairs and for documents that are padded",
            'Leave it out, or set data.packing = "pad".',
        )  # fmt: skip
