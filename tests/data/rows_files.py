"""Small files of rows for the tests."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.ipc
import pyarrow.parquet


def json_lines(path: Path, rows: Iterable[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=3)
    return path


def arrow(path: Path, rows: list[dict[str, Any]], *, stream: bool = False) -> Path:
    table = pyarrow.Table.from_pylist(rows)
    new = pyarrow.ipc.new_stream if stream else pyarrow.ipc.new_file
    with new(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    return path


def compressed(path: Path, compression: str) -> Path:
    """Replaces a file by a compressed one, in two members or frames one after the other."""
    content = path.read_bytes()
    packed = path.with_name(path.name + {"gzip": ".gz", "zstd": ".zst"}[compression])
    half = len(content) // 2
    packed.write_bytes(b"".join(_packed(part, compression) for part in (content[:half], content[half:])))
    path.unlink()
    return packed


def _packed(content: bytes, compression: str) -> bytes:
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, compression) as stream:
        stream.write(content)
    return bytes(sink.getvalue())
