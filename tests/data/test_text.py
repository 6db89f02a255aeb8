"""What is not text is not trained on: the refusal says what it is and what to do."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from planaria.data.reading.sources import DataError
from planaria.data.tokens.preparation import prepare_tokens
from planaria.job.sections.data import DataSection
from planaria.ui.cli.main import cli

NOISE = random.Random(7).randbytes(5000)
LINES = "".join(json.dumps({"text": f"worm {n}"}) + "\n" for n in range(50)).encode()
TEXT = "Würmer wachsen nach. 虫は再生する。 Черви отрастают.\n".encode() * 3000


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("noise.parquet", NOISE, "is not Parquet"),
        ("noise.txt", NOISE, "binary data"),
        ("noise", NOISE, "binary data"),
        ("table.dat", b"PAR1" + NOISE, "is Parquet"),
        ("lines.json", LINES, "is JSON, not plain text"),
        ("LINES.CSV", LINES, "is a table"),
        ("text.txt.zst", gzip.compress(TEXT), "not compressed by zstd"),
        ("text.txt", TEXT.decode().encode("utf-16"), "UTF-16"),
        ("text.md", TEXT.decode().encode("utf-16-le"), "binary data"),
        ("latin.txt", "Größe wächst über Füße\n".encode("latin-1") * 100, "not UTF-8"),
        ("late.txt", TEXT * 10 + NOISE * 20, "binary data"),
        ("text.bin", b"some text that was never made into ids.\n" * 100, r"holds text.*Name it text.txt"),
    ],
)
def test_what_is_no_text_is_refused_alone_and_in_a_folder(
    name: str, content: bytes, reason: str, tmp_path: Path
) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / name).write_bytes(content)
    sources = [texts / name, texts / "*"] if not name.endswith(".bin") else [texts / name]
    for source in sources if not name.endswith((".txt", ".md")) else [*sources, texts]:
        with pytest.raises(DataError, match=rf"data.source = .*{name}.*{reason}") as caught:
            prepare_tokens(DataSection(source=str(source)), tmp_path / "run")
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "run" / "tokens.bin").exists()


@pytest.mark.parametrize("content", [TEXT, b"x", b"plain\ttext\r\n\f\x1b[1m", TEXT + b"\xff", b"worm\xff"])
@pytest.mark.parametrize("name", ["text.txt", "text", "text.log"])
def test_text_is_text_whatever_its_name(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    tokens = prepare_tokens(DataSection(source=str(tmp_path / name)), tmp_path / "run")
    assert len(tokens) == len(content) + 1


def test_token_ids_that_look_like_nothing_are_taken(tmp_path: Path) -> None:
    np.arange(250, dtype=np.uint16).tofile(tmp_path / "ids.bin")
    assert len(prepare_tokens(DataSection(source=str(tmp_path / "ids.bin")), tmp_path / "run")) == 250


def test_the_command_refuses_what_is_no_text_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "noise.parquet").write_bytes(NOISE)
    (tmp_path / "job.toml").write_text(
        '[model]\ntype = "gpt2"\n[data]\nsource = "noise.parquet"\n[train]\nsteps = 1\nglobal_batch = 2\n'
        "microbatch = 1\nsequence_length = 8\n[cluster]\nnodes = 2\n"
    )
    refused = CliRunner().invoke(cli, ["train", "job.toml"])
    assert refused.exit_code == 2
    assert refused.stderr.splitlines()[-1].startswith("planaria: error: data.source = 'noise.parquet': ")
    assert "Traceback" not in refused.output
    assert not (tmp_path / "runs" / "job").exists()
