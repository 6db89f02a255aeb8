"""Datasets of the hub by name: their Arrow files are read where `datasets` has laid them down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest

from planaria.data.reading.hub import is_hub_name
from planaria.data.reading.sources import DataError
from planaria.data.tokenizer import SEPARATOR_ID
from planaria.data.tokens import prepare_tokens
from planaria.job.data_settings import DataSection


def read(source: str, tmp_path: Path) -> str:
    tokens = prepare_tokens(DataSection(source=source), tmp_path / "run")
    return bytes(ord("|") if one == SEPARATOR_ID else one for one in tokens.ids.tolist()).decode()


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Has the library give a dataset of this machine, whatever is asked for."""
    datasets.Dataset.from_dict({"text": ["aaa", "bbb"]}).save_to_disk(str(tmp_path / "saved"))
    calls: list[Any] = []

    def load_dataset(name: str, config: str | None, **options: Any) -> Any:
        calls.append((name, config, options))
        return datasets.load_from_disk(str(tmp_path / "saved"))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return calls


def test_a_split_is_read_by_name(asked: list[Any], tmp_path: Path) -> None:
    assert read("hf://some/corpus", tmp_path) == "aaa|bbb|"
    assert read("hf://some/corpus?split=validation&config=en&revision=v1", tmp_path) == "aaa|bbb|"
    assert asked == [
        ("some/corpus", None, {"split": "train", "revision": None}),
        ("some/corpus", "en", {"split": "validation", "revision": "v1"}),
    ]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("splits=train", "'splits' is not one of split, config, revision"),
        ("split=train[:10%]", "is not the name of one split"),
    ],
)
def test_options_that_cannot_be(options: str, told: str, asked: list[Any], tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read(f"hf://some/corpus?{options}", tmp_path)
    assert told in str(caught.value)
    assert not asked


def test_no_network_is_told_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: Any, **options: Any) -> Any:
        raise ConnectionError("Couldn't reach\nthe Hub")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(DataError) as caught:
        read("hf://some/corpus", tmp_path)
    text = str(caught.value)
    assert "data.source = 'hf://some/corpus' cannot be had from the hub (Couldn't reach the Hub)" in text
    assert "hf download some/corpus --repo-type dataset" in text


def test_urls_of_files_are_no_names() -> None:
    assert is_hub_name("hf://corpus")
    assert not any(map(is_hub_name, ("hf://datasets/some/corpus/*.parquet", "hf://a/b/c.jsonl", "https://a/b", "a/b")))
