"""A pair is a prompt for an encoder and a completion for a decoder, each filled up, cut or dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rows_files import json_lines

from planaria.data.samples.translations import Translations
from planaria.data.tokens.preparation import prepare_tokens
from planaria.data.tokens.tokenizer import PAD_ID, SEPARATOR_ID
from planaria.job.sections.data import SOURCE_MASK, DataSection, Packing, TooLong

ROWS = [{"de": "ab", "en": "xyz"}, {"de": "", "en": "w"}, {"de": "abcdef", "en": "s"}, {"de": "c", "en": "tuvwx"}]


def pairs(tmp_path: Path, **fields: Any) -> Translations:
    source = json_lines(tmp_path / "pairs.jsonl", ROWS)
    section = DataSection(source=str(source), prompt="de", completion="en", packing=Packing.TRANSLATE, **fields)
    return Translations(prepare_tokens(section, tmp_path / "prepared"), section, 5)


def told(found: Translations) -> list[tuple[str, str, int]]:
    """Returns each pair's inputs, labels, and how much of the inputs is read; "$" is a separator, "_" filled up."""
    letters = {SEPARATOR_ID: "$", PAD_ID: "_", -100: "_"}
    batch = found.batch(np.arange(len(found)), np.random.default_rng(0))
    texts = [
        ["".join(letters.get(one) or chr(one) for one in row) for row in batch[name].tolist()]
        for name in ("input_ids", "labels")
    ]
    return list(zip(*texts, batch[SOURCE_MASK].sum(dim=1).tolist(), strict=True))


def test_prompts_are_read_and_completions_are_learned(tmp_path: Path) -> None:
    found = pairs(tmp_path)
    assert told(found) == [("ab$__", "xyz$_", 3), ("$____", "w$___", 1), ("abcd$", "s$___", 5), ("c$___", "tuvwx", 2)]
    assert str(found.left_out) == "2 of 4 documents are longer than a window"


def test_what_is_too_long_may_be_dropped(tmp_path: Path) -> None:
    found = pairs(tmp_path, too_long=TooLong.DROP, eos=False)
    assert told(found) == [("ab___", "xyz__", 2), ("_____", "w____", 1), ("c____", "tuvwx", 1)]
    assert found.left_out.dropped == 1
