"""The sections [data] and [eval] of the job file, as `planaria.job.settings` has the others."""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from planaria.job.registry import DataSource
from planaria.job.section import Section


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


DOCUMENT_POSITIONS = "document_positions"
"""Name of the batch's tensor that tells models of documents that are apart: each token's position in its document."""


SOURCE_MASK = "source_mask"
"""Name of the batch's tensor that tells an encoder what to read: 1 for each token, 0 for what fills up."""


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


STREAM_FIELDS = ("shuffle_buffer", "stream_disk_gb", "repeat")
"""Fields of [data] that are for streams alone."""


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


class EvalMetric(enum.StrEnum):
    """What an evaluation tells. `accuracy`: share of the labels that the model thinks the likeliest."""

    LOSS = "loss"
    PERPLEXITY = "perplexity"
    ACCURACY = "accuracy"

    @property
    def rises(self) -> bool:
        """Whether a higher value is better."""
        return self is EvalMetric.ACCURACY


class EvalTarget(Section, frozen=True):
    """[eval.stop_at]

    Attributes:
        metric: loss, perplexity or accuracy.
        value: the run ends at a loss or a perplexity of at most this, or at an accuracy of at least this.
    """

    metric: EvalMetric
    value: float


class EvalSection(Section, frozen=True):
    """[eval]

    How the model does on data that it is never trained on (share or source); see docs/howto/evaluation.md.

    Attributes:
        share: share of the data's windows, or samples, that are held out: the same ones whatever train.seed is,
            scattered over all of them, rounded up to whole microbatches.
        source: as data.source: data of their own.
        config: keyword arguments of that function, beside those of data.config, which they replace.
        every: steps between evaluations; the last step is evaluated too. 0: the model is not evaluated.
        microbatches: of train.microbatch samples, that each evaluation takes; always the same ones.
        metric: by which the best checkpoint is chosen: loss, perplexity or accuracy.
        keep_best: a checkpoint is written at each evaluation, and the best one stays beside the newest ones.
        stop_at: end the run as soon as an evaluation reaches this, for instance {metric = "accuracy", value = 0.9}.
    """

    share: float = 0.0
    source: str = ""
    config: dict[str, Any] = msgspec.field(default_factory=dict)
    every: int = 0
    microbatches: int = 8
    metric: EvalMetric = EvalMetric.LOSS
    keep_best: bool = True
    stop_at: EvalTarget | None = None

    def evaluations_in(self, steps: int, done: int = 0) -> int:
        """Returns how often the model is evaluated in so many steps, of which some are done."""
        if not self.every or done >= steps:
            return 0
        return steps // self.every - done // self.every + (steps % self.every > 0)

    @property
    def has_data(self) -> bool:
        """Whether there is anything to evaluate on."""
        return self.share > 0 or self.source != ""
