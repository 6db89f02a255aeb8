"""Sources become tokens once, in an order of names alone; what cannot be read is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from token_files import tokens_of

from planaria.data.reading.sources import DataError, find_files
from planaria.data.tokens.preparation import prepare_tokens
from planaria.data.tokens.token_set import open_tokens
from planaria.data.tokens.tokenizer import MASK_ID, PAD_ID, SEPARATOR_ID
from planaria.job.sections.data import DataSection


def test_a_text_files_bytes_are_its_tokens(tmp_path: Path) -> None:
    tokens = tokens_of(tmp_path, b"worm\xff")
    assert tokens.ids.tolist() == [*b"worm\xff", SEPARATOR_ID]
    assert tokens.ids.dtype == np.dtype("<u2")
    assert (tokens.vocab_size, tokens.mask_token_id, tokens.pad_token_id) == (259, MASK_ID, PAD_ID)
    assert not tokens.ids.flags.writeable


def test_a_worker_opens_what_was_prepared(tmp_path: Path) -> None:
    tokens = tokens_of(tmp_path, b"some text")
    opened = open_tokens(tmp_path / "tokens")
    assert opened.about == tokens.about
    assert np.array_equal(opened.ids, tokens.ids)


def test_folders_and_globs_are_read_in_name_order(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    (texts / "deep").mkdir(parents=True)
    for name in ("c.txt", "a.md", "deep/b.py", "ignored.png"):
        (texts / name).write_text(name[0] if "/" not in name else "b")
    folder = prepare_tokens(DataSection(source=str(texts)), tmp_path / "1")
    assert bytes(int(one) for one in folder.ids if one < 256) == b"acb"
    pattern = prepare_tokens(DataSection(source=str(texts / "**" / "*.[mp]*")), tmp_path / "2")
    assert bytes(int(one) for one in pattern.ids if one < 256) == b"abi"


def test_the_standard_library_is_there_without_its_tests() -> None:
    files = [file.path for file in find_files("python-stdlib")]
    names = {"/".join(file.parts[-2:]) for file in files}
    assert any(name.endswith("/argparse.py") for name in names)
    assert not any("test" in file.parts or "site-packages" in file.parts for file in files)
    assert files == sorted(files, key=lambda file: file.as_posix())
    assert sum(file.stat().st_size for file in files) > 5_000_000


def test_tokens_are_made_once_until_the_source_changes(tmp_path: Path) -> None:
    first = tokens_of(tmp_path, b"first text")
    made = (tmp_path / "tokens" / "tokens.bin").stat().st_mtime_ns
    section = DataSection(source=str(tmp_path / "text.txt"))
    again = prepare_tokens(section, tmp_path / "tokens")
    assert (tmp_path / "tokens" / "tokens.bin").stat().st_mtime_ns == made
    assert again.fingerprint == first.fingerprint
    other = tokens_of(tmp_path, b"other text")
    assert other.fingerprint != first.fingerprint
    assert bytes(other.ids[:5].astype(np.uint8)) == b"other"


def test_the_fingerprint_is_of_the_tokens_not_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    assert tokens_of(tmp_path / "one", b"same").fingerprint == tokens_of(tmp_path / "two", b"same").fingerprint


def test_tokens_cut_short_are_made_again_or_refused(tmp_path: Path) -> None:
    tokens_of(tmp_path, b"a text of some length")
    os.truncate(tmp_path / "tokens" / "tokens.bin", 8)
    with pytest.raises(DataError, match="holds 4 tokens"):
        open_tokens(tmp_path / "tokens")
    assert len(tokens_of(tmp_path, b"a text of some length")) == 22
    assert len(prepare_tokens(DataSection(source=str(tmp_path / "text.txt")), tmp_path / "tokens")) == 22


@pytest.mark.parametrize("suffix", [".bin", ".npy"])
def test_token_files_are_mapped_where_they_lie(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"ids{suffix}"
    ids = np.arange(200, dtype=np.uint16 if suffix == ".bin" else np.int32)
    ids.tofile(path) if suffix == ".bin" else np.save(path, ids)
    tokens = prepare_tokens(DataSection(source=str(path)), tmp_path / "run")
    assert np.array_equal(tokens.ids, ids)
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["tokens.json"]
    assert np.array_equal(open_tokens(tmp_path / "run").ids, ids)


def test_a_tokenizer_file_gives_ids_and_vocabulary(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"flat": 0, "worm": 1, "[UNK]": 2, "[SEP]": 3, "[MASK]": 4}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    source = tmp_path / "text.txt"
    source.write_text("flat worm moth")
    section = DataSection(source=str(source), tokenizer=str(tmp_path / "tokenizer.json"))
    tokens = prepare_tokens(section, tmp_path / "run")
    assert tokens.ids.tolist() == [0, 1, 2, 3]
    assert (tokens.vocab_size, tokens.mask_token_id, tokens.pad_token_id) == (5, 4, None)


def test_refusals_name_the_value_and_the_remedy(tmp_path: Path) -> None:
    def refusal(source: str, tokenizer: str = "bytes") -> str:
        with pytest.raises(DataError) as caught:
            prepare_tokens(DataSection(source=source, tokenizer=tokenizer), tmp_path / "run")
        assert "\n" not in str(caught.value)
        return str(caught.value)

    (tmp_path / "empty.txt").touch()
    (tmp_path / "empty.bin").touch()
    (tmp_path / "odd.bin").write_bytes(b"\0a\1")
    (tmp_path / "hollow").mkdir()
    np.save(tmp_path / "square.npy", np.zeros((2, 2), dtype=np.uint16))
    np.save(tmp_path / "high.npy", np.array([1, 300], dtype=np.uint16))
    assert "'/no/file.txt'" in (text := refusal("/no/file.txt"))
    assert "does not exist" in text
    assert "matches nothing" in refusal("/no/*.txt")
    assert "no files of a kind that is read" in refusal(str(tmp_path / "hollow"))
    assert "is empty" in refusal(str(tmp_path / "empty.txt"))
    assert "is empty" in refusal(str(tmp_path / "empty.bin"))
    assert "cannot map" in refusal(str(tmp_path / "odd.bin"))
    assert "does not exist" in refusal("/no/ids.bin")
    assert "(2, 2)" in refusal(str(tmp_path / "square.npy"))
    assert "ids from 1 to 300" in (text := refusal(str(tmp_path / "high.npy")))
    assert "259 tokens" in text
    assert "no such file" in (text := refusal("python-stdlib", "/no/tokenizer.json"))
    assert "hub" not in text
    assert "hf download Salesforce/wikitext --repo-type dataset" in (text := refusal("Salesforce/wikitext"))
    assert 'data.source = "hf://Salesforce/wikitext"' in text
    for name, folder in (("gpt2", "gpt2"), ("meta-llama/Llama-3.1-8B", "Llama-3.1-8B")):
        assert f"hf download {name} tokenizer.json --local-dir {folder}" in refusal("python-stdlib", name)
    assert "cannot be loaded" in refusal("python-stdlib", str(tmp_path / "odd.bin"))
    with pytest.raises(DataError, match="has no tokens"):
        open_tokens(tmp_path / "hollow")


def test_preparing_does_without_torch() -> None:
    script = "import sys; import planaria.data.tokens.preparation; sys.exit(int('torch' in sys.modules))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
