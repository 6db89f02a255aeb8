"""docs/explanation/guarantees.md against the tests that it names: they are there, and no promise is without one."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "guarantees.md").read_text()
BROKEN_SO = (
    "tests/protocol/mutations.py",
    "tests/simulate/test_mutations.py",
    "tests/runtime/worker/test_mutations.py",
)
STORMS = "tests/testkit/promises/test_liveness.py"


def defined(*paths: str) -> set[str]:
    return {name for path in paths for name in re.findall(r"^def (\w+)\(", (ROOT / path).read_text(), re.MULTILINE)}


def test_every_test_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"`(tests/[\w/]+(?:\.py)?)(?:::(\w+))?`", PAGE))
    assert len(named) > 100
    gone = {path for path, _ in named if not (ROOT / path).exists()}
    gone |= {f"{path}::{test}" for path, test in named if test and path not in gone and test not in defined(path)}
    assert not gone


def rows() -> dict[str, str]:
    """Returns what shows each promise, as the last tables say."""
    found = PAGE.partition("## What would break")[2].partition("Beside these, `make mutants")[0]
    return dict(re.findall(r"^\| ([^|`]+) \| (`.+) \|$", found, re.MULTILINE))


def test_each_way_to_break_a_promise_is_tried() -> None:
    named = {name for shown in rows().values() for name in re.findall(r"`(\w+)`", shown)}
    of_storms = {name.removeprefix("test_").removesuffix("_is_found") for name in defined(STORMS)}
    assert len(named) > 20
    assert not named - defined(*BROKEN_SO) - of_storms


def test_no_promise_is_without_a_proof() -> None:
    sections = re.findall(r"^## (.+)\n\n\*\*Promise\.\*\*", PAGE, re.MULTILINE)
    assert len(sections) > 25
    assert not {title.lower() for title in sections} - rows().keys()
