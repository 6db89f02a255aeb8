"""Rows become documents, whatever file they are in; what is broken is refused in a line, or left out and counted."""

from __future__ import annotations

import json
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rows_files import arrow, compressed, json_lines, parquet

from planaria.data.reading.rows import PIECE_BYTES
from planaria.data.reading.sources import DataError
from planaria.data.tokens import encoding, preparation
from planaria.data.tokens.preparation import prepare_tokens
from planaria.data.tokens.token_set import TokenSet
from planaria.data.tokens.tokenizer import SEPARATOR_ID
from planaria.job.sections.data import DataSection, OnBadRow, TokenDType

ROWS = [{"text": f"worm {n} – 虫", "n": n, "deep": {"de": f"Wurm {n}"}} for n in range(10)]
SAME = [*"".join(f"worm {n} – 虫|" for n in range(10)).encode()]


def ids_of(found: TokenSet) -> list[int]:
    return [ord("|") if one == SEPARATOR_ID else one for one in found.ids.tolist()]


def prepared(source: Path | str, tmp_path: Path, **fields: Any) -> TokenSet:
    return prepare_tokens(DataSection(source=str(source), **fields), tmp_path / "prepared")


def refusal(source: Path | str, tmp_path: Path, **fields: Any) -> str:
    with pytest.raises(DataError) as caught:
        prepared(source, tmp_path, **fields)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "prepared").iterdir())
    return str(caught.value)


FILES: dict[str, Callable[[Path], Path]] = {
    "jsonl": lambda folder: json_lines(folder / "rows.jsonl", ROWS),
    "jsonl.gz": lambda folder: compressed(json_lines(folder / "rows.jsonl", ROWS), "gzip"),
    "jsonl.zst": lambda folder: compressed(json_lines(folder / "rows.ndjson", ROWS), "zstd"),
    "parquet": lambda folder: parquet(folder / "rows.parquet", ROWS),
    "arrow file": lambda folder: arrow(folder / "rows.arrow", ROWS),
    "arrow stream": lambda folder: arrow(folder / "rows.feather", ROWS, stream=True),
}


@pytest.mark.parametrize("kind", FILES)
def test_rows_are_documents(kind: str, tmp_path: Path) -> None:
    file = FILES[kind](tmp_path)
    assert ids_of(prepared(file, tmp_path)) == SAME
    other = prepared(file, tmp_path, column="deep.de", eos=False)
    assert bytes(other.ids.tolist()).decode() == "".join(f"Wurm {n}" for n in range(10))


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_text_may_be_compressed(compression: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("flat worms\n" * 9)
    packed = compressed(tmp_path / "text.txt", compression)
    assert bytes(prepared(packed, tmp_path).ids[:-1].tolist()) == b"flat worms\n" * 9


def test_folders_and_globs_of_rows(tmp_path: Path) -> None:
    folder = tmp_path / "rows" / "deep"
    folder.mkdir(parents=True)
    parquet(folder / "b.parquet", ROWS[5:])
    parquet(folder.parent / "a.parquet", ROWS[:5])
    (folder / "_SUCCESS").touch()
    assert ids_of(prepared(tmp_path / "rows", tmp_path)) == SAME
    (folder.parent / "README.md").write_text("what these are")
    assert ids_of(prepared(tmp_path / "rows" / "**" / "*.parquet", tmp_path)) == SAME
    told = refusal(tmp_path / "rows", tmp_path / "again")
    assert "files of several kinds: 1 of text" in told
    assert "2 of Parquet" in told


def test_a_dataset_that_was_saved_to_disk(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_list(ROWS)
    whole.select(range(10)).save_to_disk(str(tmp_path / "saved"), num_shards=3)
    assert ids_of(prepared(tmp_path / "saved", tmp_path)) == SAME
    datasets.DatasetDict(train=whole, test=whole.select([1])).save_to_disk(str(tmp_path / "splits"))
    assert ids_of(prepared(tmp_path / "splits" / "test", tmp_path)) == [*"worm 1 – 虫|".encode()]
    assert "has the splits train, test. Give one" in refusal(tmp_path / "splits", tmp_path / "again")


def test_what_datasets_leaves_can_be_read_without_it(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    arrow(saved / "data-00000-of-00001.arrow", ROWS, stream=True)
    (saved / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    assert ids_of(prepared(saved, tmp_path)) == SAME


@pytest.mark.parametrize("kind", FILES)
def test_a_missing_column_is_named_with_those_there_are(kind: str, tmp_path: Path) -> None:
    told = refusal(FILES[kind](tmp_path), tmp_path, column="content")
    assert "has no column 'content'. Set data.column to one of text, n, deep." in told


BAD_LINES = ['{"text": "one"}', "{broken", '{"text": null}', '{"text": 5}', "[1]", '{"other": "x"}', '{"text": "two"}']


def test_broken_rows_are_refused_or_counted(tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text("\n".join(BAD_LINES))
    assert "rows.jsonl row 2: is not JSON" in (told := refusal(source, tmp_path))
    assert 'set data.on_bad_row = "skip"' in told
    found = prepared(source, tmp_path, on_bad_row=OnBadRow.SKIP)
    assert ids_of(found) == [*b"one|two|"]
    assert found.about.bad_rows == 5
    assert "rows.jsonl row 2: is not JSON" in found.about.first_bad_row
    source.write_text('{"text": null}\n')
    assert "is empty (1 files)" in (told := refusal(source, tmp_path / "again", on_bad_row=OnBadRow.SKIP))
    assert "All 1 rows are bad" in told
    nulls = parquet(tmp_path / "nulls.parquet", [{"text": "a"}, {"text": None}])
    assert "nulls.parquet row 2: 'text' is null" in refusal(nulls, tmp_path / "again")


def test_files_that_are_not_what_their_name_says(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).bytes(4000)
    for name, content, reason in (
        ("a.parquet", noise, "is not Parquet"),
        ("b.parquet", b"PAR1" + noise, "cannot be read as Parquet"),
        ("c.arrow", b"ARROW1" + noise, "cannot be read as Arrow"),
        ("d.jsonl", b"plain text\n", "is not JSON Lines"),
        ("e.jsonl", noise, "binary data"),
        ("f.jsonl", b"", "is empty"),
        ("g.txt.gz", b"plain text\n", "is not compressed by gzip"),
        ("h.txt.gz", b"\x1f\x8b" + noise, "cannot unpack"),
        ("i.dat", b"PAR1" + noise, "is Parquet, not plain text. Name it i.parquet"),
    ):
        (tmp_path / name).write_bytes(content)
        assert reason in refusal(tmp_path / name, tmp_path), name
    parquet(tmp_path / "none.parquet", [{"text": "x"}][:1])
    assert "has files of several kinds" in refusal(tmp_path / "*.*", tmp_path)


def test_token_files_of_32_bits_and_of_megatron(tmp_path: Path) -> None:
    ids = np.arange(1, 201, dtype=np.uint32)
    ids.tofile(tmp_path / "ids.bin")
    assert 'Set data.token_dtype = "uint32"' in refusal(tmp_path / "ids.bin", tmp_path)
    assert np.array_equal(prepared(tmp_path / "ids.bin", tmp_path, token_dtype=TokenDType.UINT32).ids, ids)
    ids.astype(np.int32).tofile(tmp_path / "megatron.bin")
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, 2, 3)
    body = np.array([120, 80], np.int32).tobytes() + np.array([0, 480], np.int64).tobytes()
    (tmp_path / "megatron.idx").write_bytes(head + body + np.array([0, 1, 2], np.int64).tobytes())
    found = prepared(tmp_path / "megatron.bin", tmp_path)
    assert np.array_equal(found.ids, ids)
    assert found.about.path == str((tmp_path / "megatron.bin").resolve())
    (tmp_path / "megatron.idx").write_bytes(b"something else, of some length")
    assert "is no index of Megatron's" in refusal(tmp_path / "megatron.bin", tmp_path / "again")


def test_several_token_files_are_one_after_the_other(tmp_path: Path) -> None:
    folder = tmp_path / "ids"
    folder.mkdir()
    np.save(folder / "a.npy", np.arange(50, dtype=np.int64))
    np.arange(50, 90, dtype=np.uint16).tofile(folder / "b.bin")
    assert prepared(folder, tmp_path).ids.tolist() == list(range(90))
    np.save(folder / "c.npy", np.array([1, 300]))
    assert "c.npy holds ids from 1 to 300" in refusal(folder, tmp_path / "again")


def words(num_bytes: int) -> str:
    chosen = np.random.default_rng(1).integers(0, 5000, num_bytes // 6)
    return " ".join(f"w{n}x" for n in chosen.tolist())


@pytest.fixture(scope="module")
def byte_pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level tokenizer with some merges."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator([words(20_000)], trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_a_long_document_has_the_ids_of_the_whole(
    byte_pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokenizers import Tokenizer

    monkeypatch.setattr("planaria.data.reading.rows.PIECE_BYTES", 1 << 16)
    text = words(5 << 15)
    (tmp_path / "long.txt").write_text(text)
    json_lines(tmp_path / "long.jsonl", [{"text": text}])
    tokenizer = Tokenizer.from_file(str(byte_pairs))
    whole = [*tokenizer.encode(text, add_special_tokens=False).ids, tokenizer.token_to_id("<|endoftext|>")]
    for name in ("long.txt", "long.jsonl"):
        assert prepared(tmp_path / name, tmp_path, tokenizer=str(byte_pairs)).ids.tolist() == whole


@pytest.mark.parametrize("text", ["虫" * 700_000, "x" * 2_500_000, " " * 2_500_000, "é\n" * 900_000])
def test_what_has_no_words_is_cut_between_characters(text: str, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text(text)
    pieces = list(encoding.text_pieces(preparation.find_files(str(tmp_path / "long.txt"))[0]))
    assert all(len(piece.text) <= 2 * PIECE_BYTES for piece in pieces)
    assert "".join(piece.text.decode() for piece in pieces) == text
    assert [piece.is_last for piece in pieces] == [False] * (len(pieces) - 1) + [True]


INTERRUPTED = """
import os, signal, sys
from pathlib import Path
from planaria.data.tokens import encoding, preparation
from planaria.job.sections.data import DataSection
encoding._NOTED_BYTES = encoding._BATCH_BYTES = 1000
preparation.DATA_CACHE_BYTES = 0
write = encoding._write_note
def write_and_die(note, done):
    write(note, done)
    if done.file == 1 and done.pieces > 20:
        os.kill(os.getpid(), signal.SIGKILL)
encoding._write_note = write_and_die
source, folder, cache = sys.argv[1:]
preparation.prepare_tokens(DataSection(source=source), Path(folder), cache=Path(cache))
"""


def test_what_was_interrupted_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    for name in "abc":
        json_lines(folder / f"{name}.jsonl", [{"text": f"{name} {n} " * 20} for n in range(100)])
    cache = tmp_path / "cache"
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(folder), str(tmp_path / "first"), str(cache)], check=False
    )
    assert done.returncode == -signal.SIGKILL
    (place,) = cache.iterdir()
    half = (place / "tokens.bin.new").stat().st_size
    assert half > 0
    encoded = []
    encode = preparation.load_tokenizer("bytes").__class__.encode
    monkeypatch.setattr(
        "planaria.data.tokens.tokenizer.ByteTokenizer.encode",
        lambda self, texts: encoded.extend(texts) or encode(self, texts),
    )
    monkeypatch.setattr(preparation, "DATA_CACHE_BYTES", 0)
    section = DataSection(source=str(folder))
    found = prepare_tokens(section, tmp_path / "second", cache=cache)
    alone = prepare_tokens(section, tmp_path / "alone")
    assert np.array_equal(found.ids, alone.ids)
    assert found.fingerprint == alone.fingerprint
    assert sorted(file.name for file in place.iterdir()) == ["lock", "tokens.bin", "tokens.json"]
    assert sorted(file.name for file in (tmp_path / "second").iterdir()) == ["tokens.bin", "tokens.json"]
    assert (place / "tokens.bin").samefile(tmp_path / "second" / "tokens.bin")
    num_encoded = len(encoded)
    assert num_encoded < 300 + 300 - 110  # `alone` encodes all 300
    third = prepare_tokens(section, tmp_path / "third", cache=cache)
    assert len(encoded) == num_encoded
    assert third.fingerprint == alone.fingerprint
