"""Windows of whole documents: one of them padded, or several; every window has a label, and what is cut is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rows_files import json_lines

from planaria.data.reading.sources import DataError
from planaria.data.samples import examples
from planaria.data.samples.examples import Examples
from planaria.data.tokens.preparation import prepare_tokens
from planaria.data.tokens.tokenizer import PAD_ID, SEPARATOR_ID
from planaria.job.sections.data import DOCUMENT_POSITIONS, DataSection, Packing, TooLong

PAIRS = [("ab", "cd"), ("a", "bcdefghij"), ("abcdefghij", "k"), ("", "xy")]
CHANCE = np.random.default_rng(0)


def windows(tmp_path: Path, length: int, **fields: Any) -> Examples:
    source = json_lines(tmp_path / "pairs.jsonl", [{"p": prompt, "c": completion} for prompt, completion in PAIRS])
    section = DataSection(source=str(source), **{"prompt": "p", "completion": "c", **fields})
    return Examples(prepare_tokens(section, tmp_path / "prepared"), section, length)


def told(found: Examples, number: int) -> tuple[str, str]:
    """Returns a window's inputs and labels; "$" is a separator, "_" filled up or no label."""
    batch = found.batch(np.array([number]), CHANCE)
    letters = {SEPARATOR_ID: "$", PAD_ID: "_", -100: "_"}
    return tuple(  # type: ignore[return-value]
        "".join(letters.get(one) or chr(one) for one in batch[name][0].tolist()) for name in ("input_ids", "labels")
    )


def test_one_document_a_window(tmp_path: Path) -> None:
    found = windows(tmp_path, 12)
    assert [told(found, number) for number in range(len(found))] == [
        ("abcd________", "_cd$________"),
        ("abcdefghij__", "bcdefghij$__"),
        ("abcdefghijk_", "_________k$_"),
        ("xy__________", "y$__________"),
    ]
    assert found.left_out.too_long == 0


def test_what_is_too_long_is_cut_or_dropped_and_counted(tmp_path: Path) -> None:
    found = windows(tmp_path, 5)
    assert [told(found, number) for number in range(len(found))] == [
        ("abcd_", "_cd$_"), ("abcde", "bcdef"), ("xy___", "y$___"),
    ]  # fmt: skip
    assert str(found.left_out) == "2 of 4 documents are longer than a window; 1 are left out"
    dropped = windows(tmp_path, 5, too_long=TooLong.DROP)
    assert [told(dropped, number)[0] for number in range(len(dropped))] == ["abcd_", "xy___"]
    assert dropped.left_out.dropped == 2
    with pytest.raises(DataError, match=r"has 4 documents, and no window has an answer .*longest has 12 tokens"):
        windows(tmp_path, 1, too_long=TooLong.DROP)


def test_as_many_documents_as_a_window_has_room_for(tmp_path: Path) -> None:
    found = windows(tmp_path, 14, packing=Packing.APART)
    assert [told(found, number) for number in range(len(found))] == [
        ("abcdabcdefghij", "_cd$bcdefghij$"),
        ("abcdefghijkxy_", "_________k$y$_"),
    ]
    positions = found.batch(np.arange(2), CHANCE)[DOCUMENT_POSITIONS].tolist()
    assert positions == [[*range(4), *range(10)], [*range(11), 0, 1, 0]]


@pytest.mark.parametrize("packing", [Packing.PAD, Packing.APART])
def test_every_window_has_a_label_and_every_document_one_window(
    packing: Packing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examples, "_COUNTED_TOKENS", 50)
    random = np.random.default_rng(3)
    sizes = random.integers(0, 12, (300, 2))
    rows = [{"p": "p" * int(prompt), "c": "c" * int(1 + size)} for prompt, size in sizes]
    source = json_lines(tmp_path / "pairs.jsonl", rows)
    section = DataSection(source=str(source), prompt="p", completion="c", packing=packing)
    found = Examples(prepare_tokens(section, tmp_path / "prepared"), section, 14)
    batch = found.batch(np.arange(len(found)), CHANCE)
    is_label = batch["labels"] != -100
    assert is_label.any(dim=1).all()
    taken = [(min(prompt + size + 2, 15), prompt) for prompt, size in sizes.tolist()]
    assert int(is_label.sum()) == sum(size - max(prompt, 1) for size, prompt in taken if size > max(prompt, 1))
    assert len(found) == len(taken) - found.left_out.dropped if packing is Packing.PAD else len(found) < 300
