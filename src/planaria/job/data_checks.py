"""What makes [data] and [eval] impossible, as `planaria.job.checks` has it of the other sections."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from planaria.job.data_settings import STREAM_FIELDS, DataSection, Packing, TooLong
from planaria.job.settings import Device, Job
from planaria.job.values import at_least, is_dataset, is_hub_stream, path, positive, refuse, shown, text


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
        _check_config("data", data.config, data.source)
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


def _check_config(section: str, config: Mapping[str, object], source: str) -> None:
    """What nobody is called with must not be set, as if somebody were."""
    if config:
        refuse(
            f"{section}.config", dict(config), f"goes with a function, and {section}.source = {shown(source)} is none",
            'Leave it out, or name one, as in "images:train".',
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


def check_eval(job: Job) -> None:
    """Refuses an [eval] that does not go with the rest of its job. Raises UserError."""
    section = job.eval
    if section.source:
        text("eval.source", section.source)
        if is_dataset(section.source) != is_dataset(job.data.source):
            refuse(
                "eval.source", section.source, f"is of another kind than data.source = {shown(job.data.source)}",
                'Give functions that return datasets ("module:function") for both, or paths for both.',
            )  # fmt: skip
        if is_hub_stream(section.source):
            refuse(
                "eval.source", section.source, "is a stream, which has no end",
                "Give its first rows (rows=N in place of stream=true).",
            )  # fmt: skip
    if section.share and is_hub_stream(job.data.source):
        refuse("eval.share", section.share, "cannot be of a stream, which has no end", "Set eval.source.")
    if not is_dataset(section.source):
        _check_config("eval", section.config, section.source)
    if not 0 <= section.share < 1:
        refuse("eval.share", section.share, "is not at least 0 and below 1", "Set for instance 0.01.")
    if section.share and section.source:
        refuse("eval.share", section.share, f"does not go with eval.source = {section.source!r}", "Give one of them.")
    at_least("eval.every", section.every, 0)
    at_least("eval.microbatches", section.microbatches, 1)
    if section.stop_at is not None:
        if not math.isfinite(section.stop_at.value):
            refuse("eval.stop_at", section.stop_at.value, "is not finite", "Give a finite value.")
        if not section.every:
            refuse("eval.stop_at", section.stop_at.value, "needs evaluations", "Set eval.every to steps.")
    if section.every and not section.has_data and job.cluster.device is not Device.EMULATED:
        refuse(
            "eval.every", section.every, "needs data that are not trained on",
            "Set eval.share, for instance to 0.01, or eval.source.",
        )  # fmt: skip
