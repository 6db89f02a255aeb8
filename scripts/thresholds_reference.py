"""Writes the table of named thresholds into docs/reference/thresholds.md, from the modules that hold them."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from generated import ROOT, wrapped, write

SCRIPT = "scripts/thresholds_reference.py"
MODULES = ("plan/thresholds.py", "protocol/thresholds.py", "runtime/thresholds.py", "runtime/observers/thresholds.py")


def reference() -> str:
    """Returns a list for each section of each module."""
    return "\n".join(line for module in MODULES for line in _tables(ROOT / "src" / "planaria" / module))


def _tables(file: Path) -> Iterator[str]:
    text = file.read_text(encoding="utf-8")
    module = ast.parse(text)
    name = ".".join(("planaria", *file.relative_to(ROOT / "src" / "planaria").with_suffix("").parts))
    yield f"## {name}\n\n{ast.get_docstring(module)}"
    found: dict[int, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("# "):
            found[number] = f"\n### {line[2:]}\n"
    for constant, says in pairwise(module.body):
        if isinstance(constant, ast.Assign):
            found[constant.lineno] = _row(constant, says, text)
    yield from (found[number] for number in sorted(found))
    yield ""


def _row(constant: ast.Assign, says: ast.stmt, text: str) -> str:
    match constant.targets, says:
        case [ast.Name(id=name)], ast.Expr(value=ast.Constant(value=str() as described)):
            value = " ".join((ast.get_source_segment(text, constant.value) or "").split())
            about = re.fullmatch(r"(.*\S) (?:Measured: (.*)|(Not) measured)\.", " ".join(described.split()))
            if about is None:
                raise SystemExit(f"{name} does not end with what it was measured on: {described!r}")
            measured = f"Measured: {about[2]}." if about[2] else "Not measured."
            return "\n".join(wrapped(f"**`{name}`** = `{value}`: {about[1]} *{measured}*", "- "))
        case _:
            raise SystemExit(f"{ast.unparse(constant)} is not a name with a description")


def main() -> int:
    """Writes or checks the page."""
    return write(ROOT / "docs" / "reference" / "thresholds.md", SCRIPT, reference())


if __name__ == "__main__":
    sys.exit(main())
