"""A section of docs/figures/papers.md: a table or figure of a paper, what comes out here, and the ratio.

Knows nothing of any paper. Numbers are made by the scripts beside it.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

FITTED = "†"
"""Behind a row of which the paper's cell went into what comes out here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a comparison.

    Attributes:
        what: which line of the paper's table, or whose.
        paper: the paper's figure; None: it has none.
        ours: the one that comes out here; None: it cannot be had.
        is_fitted: something here was set by the paper's cell, alone or with others: that they agree shows nothing.
    """

    what: str
    paper: float | None
    ours: float | None
    is_fitted: bool = False

    @property
    def ratio(self) -> float | None:
        return None if not self.paper or self.ours is None else self.ours / self.paper


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Rows of one unit.

    Attributes:
        title: what is compared, and its unit.
        rows: in order.
    """

    title: str
    rows: Sequence[Row]

    def markdown(self) -> str:
        lines = [f"| {self.title} | paper | ours | ours / paper |", "|---|---:|---:|---:|"]
        for row in self.rows:
            ratio = "" if row.ratio is None else f"{row.ratio:.3g}"
            mark = f" {FITTED}" if row.is_fitted else ""
            lines.append(f"| {row.what}{mark} | {number(row.paper)} | {number(row.ours)} | {ratio} |")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A picture.

    Attributes:
        name: of its file, without ending.
        caption: for people; also the alternative text.
        svg: its text.
    """

    name: str
    caption: str
    svg: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One table or figure.

    Attributes:
        key: name of the script that makes it.
        source: paper, and table or figure.
        title: what it shows.
        setting: what was modelled, with which costs and from where.
        comparisons: the numbers.
        verdict: where ours differs, and why, honestly.
        plots: its pictures.
    """

    key: str
    source: str
    title: str
    setting: str
    comparisons: Sequence[Comparison]
    verdict: str
    plots: Sequence[Plot] = field(default=())

    def markdown(self, folder: str) -> str:
        """The section's text; `folder`: where its pictures are, as seen from the page."""
        parts = [f"## {self.source}: {self.title}", _wrapped(self.setting)]
        parts += [comparison.markdown() for comparison in self.comparisons]
        parts += [f"![{plot.caption}]({folder}/{plot.name}.svg)" for plot in self.plots]
        parts.append(_wrapped(self.verdict))
        parts.append(f"`python benchmarks/papers/{self.key}.py`")
        return "\n\n".join(parts)


def _wrapped(text: str) -> str:
    """Returns the text in lines of at most 118 characters."""
    return "\n".join(textwrap.wrap(text, 118, break_long_words=False, break_on_hyphens=False))


def number(value: float | None) -> str:
    """Three or four digits, as the papers print them."""
    if value is None:
        return ""
    if value != 0 and abs(value) < 0.1:
        return f"{value:.2g}"
    if abs(value) < 100:
        return f"{value:.2f}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}"


Make = Callable[[Path | None], Section]
"""Makes a section; the folder has recorded traces, if there is one."""


def run(make: Make) -> None:
    """What a script does when it is run: print its section."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--traces", type=Path, metavar="FOLDER", help="recorded traces of Bamboo's repository")
    section = make(parser.parse_args().traces)
    Console(file=sys.stdout, width=120).print(Markdown(section.markdown(".")))
