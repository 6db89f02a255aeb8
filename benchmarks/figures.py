"""Figures: one JSON object a line on standard output, words for people on standard error."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

SCRATCH = Path(os.environ.get("TMPDIR", "/tmp")) / f"planaria-bench-{os.getuid()}"
"""Run folders, prepared tokens and logs of the benchmarks. May be deleted at any time."""


def report(name: str, value: float, unit: str, *, goal: str | None = None, ok: bool | None = None) -> None:
    """Print one figure.

    Args:
        name: with dots, from the general to the special.
        value: rounded to four significant digits.
        unit: "ratio", "ms", "MB", "count".
        goal: in words, such as "<= 1.03"; None: only reported. Compared when it begins with <= or >=.
        ok: whether the goal is met, where it cannot be compared.
    """
    value = float(f"{value:.4g}")
    if goal is not None and ok is None:
        sign, _, bound = goal.partition(" ")
        ok = value <= float(bound) if sign == "<=" else value >= float(bound)
    print(json.dumps({"name": name, "value": value, "unit": unit, "goal": goal, "ok": ok}), flush=True)


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
