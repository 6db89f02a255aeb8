"""Datasets of the hub by name: their Arrow files are read where `datasets` has laid them down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planaria.data.reading.hub import is_hub_name
from planaria.data.reading.sources import DataError
from planaria.data.tokens.preparation import prepare_tokens
from planaria.data.tokens.tokenizer import SEPARATOR_ID
from planaria.job.sections.data import DataSection


def read(source: str, tmp_path: Path) -> str:
    tokens = prepare_tokens(DataSection(source=source), tmp_path / "run")
    return bytes(ord("|") if one == SEPARATOR_ID else one for one in tokens.ids.tolist()).decode()


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Has the library give a dataset of this machine, whatever is asked for."""
    import datasets  # takes a second: when a test runs, not when all are collected

    datasets.Dataset.from_dict({"text": ["aaa", "bbb"]}).save_to_disk(str(tmp_path / "saved"))
    calls: list[Any] = []

    def load_dataset(name: str, config: str | None, **options: Any) -> Any:
        calls.append((name, config, options))
        return datasets.load_from_disk(str(tmp_path / "saved"))

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    return calls


def test_a_split_is_read_by_name(asked: list[Any], tmp_path: Path) -> None:
    assert read("hf://some/corpus", tmp_path) == "aaa|bbb|"
    assert read("hf://some/corpus?split=validation&config=en&revision=v1", tmp_path) == "aaa|bbb|"
    assert asked == [
        ("some/corpus", None, {"split": "train", "revision": None}),
        ("some/corpus", "en", {"split": "validation", "revision": "v1"}),
    ]


ROWS = 10_000


def stream_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the library stream a file of this machine, by its own code."""
    import datasets

    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"text": f"{n:05}", "other": n}) + "\n" for n in range(ROWS)))
    load = datasets.load_dataset

    def load_dataset(name: str, config: str | None, *, streaming: bool, **options: Any) -> Any:
        return load("json", data_files=str(file), split="train", streaming=streaming, cache_dir=str(tmp_path / "hf"))

    monkeypatch.setattr("datasets.load_dataset", load_dataset)


@pytest.mark.parametrize(("rows", "there"), [(1, 1), (4096, 4096), (9000, 9000), (ROWS + 5, ROWS)])
def test_first_rows_of_a_stream(rows: int, there: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream_of(tmp_path, monkeypatch)
    assert read(f"hf://some/corpus?rows={rows}", tmp_path) == "".join(f"{n:05}|" for n in range(there))
    monkeypatch.setattr("datasets.load_dataset", None)  # all is there
    assert read(f"hf://some/corpus?rows={rows}", tmp_path) == "".join(f"{n:05}|" for n in range(there))


@pytest.mark.parametrize("at", [1, 2])
def test_a_stream_that_was_interrupted_is_read_on(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream_of(tmp_path, monkeypatch)
    told: list[str] = []

    def interrupt(text: str) -> None:
        told.append(text)
        if sum("of the stream" in one for one in told) == at:
            raise KeyboardInterrupt

    section = DataSection(source="hf://some/corpus?rows=9000")
    with pytest.raises(KeyboardInterrupt):
        prepare_tokens(section, tmp_path / "run", tell=interrupt)
    (place,) = (tmp_path / "run" / "streamed").iterdir()
    before = {path: path.stat().st_mtime_ns for path in place.glob("rows-*")}
    assert len(before) == at
    assert read(section.source, tmp_path) == "".join(f"{n:05}|" for n in range(9000))
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("rows=many", "rows=many is not how many rows to read"),
        ("splits=train", "'splits' is not one of split, config, revision, rows"),
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

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    with pytest.raises(DataError) as caught:
        read("hf://some/corpus", tmp_path)
    text = str(caught.value)
    assert "data.source = 'hf://some/corpus' cannot be had from the hub (Couldn't reach the Hub)" in text
    assert "hf download some/corpus --repo-type dataset" in text


def test_urls_of_files_are_no_names() -> None:
    assert is_hub_name("hf://corpus")
    assert not any(map(is_hub_name, ("hf://datasets/some/corpus/*.parquet", "hf://a/b/c.jsonl", "https://a/b", "a/b")))
