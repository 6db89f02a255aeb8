"""Writes the source code of Python's standard library as a folder of Parquet files, a row for each file: some data of
the kind that people train on, made on any machine.

    python examples/parquet.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from planaria.data.reading.python_stdlib import source_files

ROWS = 200
"""Rows of a file."""


def write(folder: Path, most_files: int | None = None) -> None:
    """Writes `part-N.parquet` with the columns "path" and "text"."""
    folder.mkdir(parents=True, exist_ok=True)
    sources = sorted(source_files())[:most_files]
    for number, first in enumerate(range(0, len(sources), ROWS)):
        files = sources[first : first + ROWS]
        texts = [file.read_text(errors="replace") for file in files]
        pq.write_table(
            pa.table({"path": [file.name for file in files], "text": texts}), folder / f"part-{number}.parquet"
        )


if __name__ == "__main__":
    write(Path(sys.argv[1]))
