"""Files of a URL are fetched once, and again where they have changed; without a network, those of before are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from planaria.data.reading.remote import Result
from planaria.data.reading.sources import DataError
from planaria.data.tokens.preparation import prepare_tokens
from planaria.data.tokens.tokenizer import SEPARATOR_ID
from planaria.job.sections.data import DataSection


@pytest.fixture
def store() -> MemoryFileSystem:
    system = fsspec.filesystem("memory")
    system.store.clear()
    for name in ("a", "b"):
        system.pipe_file(f"/bucket/{name}.jsonl", json.dumps({"text": name * 3}).encode())
    system.pipe_file("/bucket/README.md", b"what these are")
    return system


def read(source: str, tmp_path: Path, told: list[str] | None = None) -> str:
    section = DataSection(source=source)
    tell = (lambda text: None) if told is None else told.append
    tokens = prepare_tokens(section, tmp_path / "run", cache=tmp_path / "cache", tell=tell)
    assert tokens.about.source == source
    return bytes(ord("|") if one == SEPARATOR_ID else one for one in tokens.ids.tolist()).decode()


def test_files_of_a_url_are_read_as_if_they_were_here(store: MemoryFileSystem, tmp_path: Path) -> None:
    told: list[str] = []
    assert read("memory://bucket/*.jsonl", tmp_path, told) == "aaa|bbb|"
    assert told == [f"file {n} of 2 is fetched: /bucket/{name}.jsonl" for n, name in ((1, "a"), (2, "b"))]
    assert read("memory://bucket/b.jsonl", tmp_path) == "bbb|"
    store.rm_file("/bucket/README.md")
    assert read("memory://bucket", tmp_path) == "aaa|bbb|"


def test_what_changed_there_is_fetched_again(
    store: MemoryFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "memory://bucket/*.jsonl"
    read(source, tmp_path)
    store.pipe_file("/bucket/b.jsonl", b'{"text": "ccccc"}')
    told: list[str] = []
    assert read(source, tmp_path, told) == "aaa|ccccc|"
    assert told == ["file 2 of 2 is fetched: /bucket/b.jsonl"]
    store.rm_file("/bucket/a.jsonl")
    assert read(source, tmp_path) == "ccccc|"

    def unreachable(self: MemoryFileSystem, path: str, **options: object) -> list[str]:
        raise OSError("no network")

    monkeypatch.setattr(MemoryFileSystem, "glob", unreachable)
    assert read(source, tmp_path) == "ccccc|"
    with pytest.raises(DataError, match=r"bucket/\*' cannot be looked at \(no network\). Check the URL"):
        read("memory://bucket/*", tmp_path)


def test_calls_are_made_by_who_may_make_them_again(store: MemoryFileSystem, tmp_path: Path) -> None:
    made: list[str] = []

    def attempt(doing: str, call: Callable[[], Result]) -> Result:
        made.append(doing)
        return call()

    section = DataSection(source="memory://bucket/*.jsonl")
    for _ in range(2):
        prepare_tokens(section, tmp_path / "run", cache=tmp_path / "cache", attempts_at=lambda url: attempt)
    assert made == ["look at it", "fetch /bucket/a.jsonl", "fetch /bucket/b.jsonl"], "what is here does at once"


def test_refusals_name_the_url(store: MemoryFileSystem, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data.source = 'memory://bucket/\*.parquet': the URL names no files"):
        read("memory://bucket/*.parquet", tmp_path)
    with pytest.raises(DataError, match=r"data.source = 'nowhere://a/b' cannot be looked at"):
        read("nowhere://a/b", tmp_path)
    with pytest.raises(DataError, match=r"missing\.jsonl"):
        read("memory://bucket/missing.jsonl", tmp_path)
