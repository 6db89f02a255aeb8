"""The source code of the installed Python's own standard library: real text, present on every machine."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

_SKIPPED_FOLDERS = frozenset(
    {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "ensurepip"}
)


def source_files() -> list[Path]:
    """Returns the library's Python files, without its tests and what was installed beside it."""
    files = []
    for folder, subfolders, names in os.walk(sysconfig.get_path("stdlib")):
        subfolders[:] = [name for name in subfolders if name not in _SKIPPED_FOLDERS]
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    return files
