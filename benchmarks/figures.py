"""Figures: one JSON object a line on standard output, words for people on standard error."""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

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
    print(json.dumps(_figure(name, value, unit, goal, ok)), flush=True)


def _figure(name: str, value: float, unit: str, goal: str | None, ok: bool | None) -> dict[str, Any]:
    value = float(f"{value:.4g}")
    if goal is not None and ok is None:
        sign, _, bound = goal.partition(" ")
        ok = value <= float(bound) if sign == "<=" else value >= float(bound)
    return {"name": name, "value": value, "unit": unit, "goal": goal, "ok": ok}


class Figures:
    """Figures of one benchmark, each of several samples: printed as they come, then as a table and as one file.

    Args:
        title: of the table.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._figures: list[dict[str, Any]] = []

    def add(self, name: str, value: float, unit: str, *, goal: str | None = None, samples: int = 1) -> None:
        """One figure, of so many samples. `goal` is as in `report`."""
        figure = {**_figure(name, value, unit, goal, None), "samples": samples}
        self._figures.append(figure)
        print(json.dumps(figure), flush=True)

    def add_samples(
        self, name: str, samples: Sequence[float], unit: str, *, goal: str | None = None, goal_p99: str | None = None
    ) -> None:
        """Median and 99th percentile; nothing where nothing was sampled."""
        if not samples:
            note(f"{name}: no samples")
            return
        self.add(f"{name}.median", statistics.median(samples), unit, goal=goal, samples=len(samples))
        self.add(f"{name}.p99", percentile(samples, 99), unit, goal=goal_p99, samples=len(samples))

    def finish(self, path: Path | None) -> None:
        """Print the table to standard error, and write the file, if one is asked for."""
        table = Table(title=self._title, box=None, padding=(0, 2, 0, 0), header_style="dim", title_justify="left")
        for heading in ("figure", "value", "unit", "samples", "goal", ""):
            table.add_column(heading, justify="right" if heading in ("value", "samples") else "left")
        for figure in self._figures:
            met = {None: "", True: "[green]met[/]", False: "[bold red]missed[/]"}[figure["ok"]]
            cells = (figure["name"], f"{figure['value']:g}", figure["unit"], str(figure["samples"]))
            table.add_row(*cells, figure["goal"] or "", met)
        Console(stderr=True, highlight=False).print(table)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"title": self._title, "figures": self._figures}, indent=1) + "\n")


def percentile(samples: Sequence[float], percent: float) -> float:
    """The smallest sample that so many percent of all do not exceed."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(len(ordered) * percent / 100) - 1))]


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
