"""What benchmarks and scripts import of Planaria is there: most of them run too long for a test."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [file for folder in ("benchmarks", "scripts") for file in sorted((ROOT / folder).rglob("*.py"))]


def imported(file: Path) -> list[tuple[str, str]]:
    """Modules of Planaria, each with a name that the file imports of it."""
    found = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)]
    return [(str(node.module), alias.name) for node in found for alias in node.names if "planaria" in str(node.module)]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_what_is_imported_is_there(file: Path) -> None:
    for module, name in imported(file):
        found = importlib.import_module(module)
        assert hasattr(found, name) or importlib.import_module(f"{module}.{name}"), f"{module} has no {name}"
