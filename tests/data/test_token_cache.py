"""Tokens in the cache are made once, whoever asks at the same time; what cannot be written is told in a line."""

from __future__ import annotations

import errno
import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rows_files import json_lines

from planaria.data.reading.sources import DataError
from planaria.data.tokens import encoding, preparation
from planaria.data.tokens.preparation import prepare_tokens
from planaria.data.tokens.token_set import open_tokens
from planaria.data.tokens.tokenizer import ByteTokenizer
from planaria.job.sections.data import DataSection

PAIRS = {"prompt": "p", "completion": "c"}


@pytest.fixture
def section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataSection:
    monkeypatch.setattr(preparation, "DATA_CACHE_BYTES", 0)
    source = json_lines(tmp_path / "rows.jsonl", [{"p": f"{n}?", "c": f"{n * n}"} for n in range(200)])
    return DataSection(source=str(source), **PAIRS)


def test_two_runs_at_once_make_them_once(section: DataSection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[bytes] = []
    encode = ByteTokenizer.encode
    monkeypatch.setattr(ByteTokenizer, "encode", lambda self, texts: encoded.extend(texts) or encode(self, texts))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: prepare_tokens(section, tmp_path / f"{n}", cache=tmp_path / "cache"), range(4)))
    assert len(encoded) == 200
    assert len({one.fingerprint for one in found}) == 1
    (place,) = (tmp_path / "cache").iterdir()
    for name in ("tokens.bin", "documents.bin", "answers.bin"):
        assert all((place / name).samefile(tmp_path / f"{n}" / name) for n in range(4))
    assert len(found[0].documents) == 200


def test_what_was_interrupted_goes_on_with_documents_and_answers(
    section: DataSection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = prepare_tokens(section, tmp_path / "alone")
    encoded: list[bytes] = []
    encode, write_note = ByteTokenizer.encode, encoding._write_note
    monkeypatch.setattr(ByteTokenizer, "encode", lambda self, texts: encoded.extend(texts) or encode(self, texts))
    monkeypatch.setattr(encoding, "_NOTED_BYTES", 100)
    monkeypatch.setattr(encoding, "_BATCH_BYTES", 50)

    def write_and_stop(note: Path, done: encoding.Progress) -> None:
        write_note(note, done)
        if done.pieces > 100:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(encoding, "_write_note", write_and_stop)
        with pytest.raises(KeyboardInterrupt):
            prepare_tokens(section, tmp_path / "run", cache=tmp_path / "cache")
    found = prepare_tokens(section, tmp_path / "run", cache=tmp_path / "cache")
    assert 200 <= len(encoded) < 250
    assert found.fingerprint == alone.fingerprint
    for name in ("tokens.bin", "documents.bin", "answers.bin"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()


def test_without_locks_each_run_makes_its_own(
    section: DataSection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(file: object, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    found = prepare_tokens(section, tmp_path / "run", cache=tmp_path / "cache")
    (place,) = (tmp_path / "cache").iterdir()
    assert [file.name for file in place.iterdir()] == ["lock"]
    assert np.array_equal(found.ids, prepare_tokens(section, tmp_path / "alone").ids)


@pytest.mark.parametrize("has_cache", [False, True])
def test_a_full_disk_is_told_and_leaves_what_was_there(
    has_cache: bool, section: DataSection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = json_lines(tmp_path / "other.jsonl", [{"p": "a", "c": "b"}])
    before = prepare_tokens(msgspec.structs.replace(section, source=str(other)), tmp_path / "run")
    cache = tmp_path / "cache" if has_cache else None

    def full(self: object, ids: object, marks: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(encoding._Output, "add", full)
        with pytest.raises(DataError, match=r"cannot be written to .* \(No space left on device\). Make room there"):
            prepare_tokens(section, tmp_path / "run", cache=cache)
    assert np.array_equal(open_tokens(tmp_path / "run").ids, before.ids)
    assert len(prepare_tokens(section, tmp_path / "run", cache=cache).documents) == 200


def test_what_was_begun_of_another_source_is_not_gone_on_with(section: DataSection, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    sizes = {"tokens.bin.new": 2, "documents.bin.new": 8, "answers.bin.new": 1}
    for name, size in sizes.items():
        (folder / name).write_bytes(bytes(50 * size))
    note = encoding.Progress(file=1, pieces=0, num_tokens=50, num_documents=50, text_bytes=50, key="another")
    (folder / "encoding.json").write_bytes(msgspec.json.encode(note))
    found = prepare_tokens(section, folder)
    assert np.array_equal(found.ids, prepare_tokens(section, tmp_path / "alone").ids)
    assert sorted(file.name for file in folder.iterdir()) == [
        "answers.bin",
        "documents.bin",
        "tokens.bin",
        "tokens.json",
    ]
