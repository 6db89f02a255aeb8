"""Makes docs/figures/papers.md and its pictures: every table and figure of the papers that a script here makes.

    make papers    (or: python benchmarks/papers/page.py [--traces FOLDER] [--only NAME ...])

With `--only`, sections that are not named keep what the page has of them.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from section import Make, Section

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "figures" / "papers.md"
PICTURES = "papers"

SECTIONS = (
    "oobleck_table2",
    "oobleck_table3",
    "oobleck_table4",
    "oobleck_figure10",
    "oobleck_figure11",
    "bamboo_figure3",
    "bamboo_figure4",
    "bamboo_table2",
    "bamboo_table3a",
    "bamboo_table3b",
    "bamboo_table5",
    "bamboo_table6",
    "bamboo_redundancy",
    "bamboo_figure14",
    "odyssey_table1",
    "odyssey_figure6",
    "odyssey_emulated",
    "odyssey_figure9",
)
"""Modules here, in the page's order; each has `section`."""

TITLE = """# The papers' tables

What the papers report, what comes out of the same setting here, and the ratio. Made by `make papers`; a section's
script is named at its end.

Published systems are modelled as their papers describe them, with the costs that they give or that their tables imply
(`benchmarks/papers/systems.py`, `bamboo_system.py`). They are what ours are held against, so where a description leaves
a choice, they get the better one, or both are shown. Rows that begin with "ours" are this project's own policies in its
own simulation, with its coordinator's transitions, planner and estimator.

Layers take the same time for both; bytes are each one's own. Published systems hold 16 bytes a parameter and sum
gradients of 2 (mixed precision with Adam; `numerics = "mixed"` of a preset). Ours are planned and simulated with what
this project's workers hold and send in exact numerics: 24 bytes a parameter, 4 of its gradient, 12 when a replica
moves, and activations of 4 bytes a value.

A paper's machine is modelled by its speed, which is set so that one named cell of its table is met. What else a model
needs and a paper does not give is fitted to the paper's own tables, too: Oobleck's pauses (all cells of its Table 2),
the speed of Varuna's storage and what a restart of it takes (cells of Table 4), the time of Bamboo's reconfigurations,
how many spot nodes go together (Table 3a), and how soon nodes come (each table's mean number of nodes, or dollars).
**Rows with a † are such cells**: something here was set by them, alone or with others, so that they agree shows
nothing. Only rows without one follow, from the rest.
"""

BEGIN, END = "<!-- {} -->", "<!-- end of {} -->"


def make_of(name: str) -> Make:
    """The script's function."""
    made: Make = importlib.import_module(name).section
    return made


def block(section: Section) -> str:
    """A section between two marks, by which it is found again."""
    return "\n\n".join([BEGIN.format(section.key), section.markdown(PICTURES), END.format(section.key)])


def kept(text: str, name: str) -> str | None:
    """What a page has of a section, with its marks."""
    begin, end = text.find(BEGIN.format(name)), text.find(END.format(name))
    return None if begin < 0 or end < 0 else text[begin : end + len(END.format(name))]


def write(page: Path, sections: Sequence[Section], names: Sequence[str] = SECTIONS) -> None:
    """The page, with these sections new and the others as they are; and the new ones' pictures beside it."""
    before = page.read_text() if page.exists() else ""
    new = {section.key: block(section) for section in sections}
    blocks = [found for name in names if (found := new.get(name, kept(before, name))) is not None]
    folder = page.parent / PICTURES
    folder.mkdir(parents=True, exist_ok=True)
    for section in sections:
        for plot in section.plots:
            (folder / f"{plot.name}.svg").write_text(plot.svg)
    page.write_text("\n\n".join([TITLE.strip(), *blocks]) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, metavar="FOLDER", help="recorded traces of Bamboo's repository")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS, metavar="NAME", help="these sections")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page (default: %(default)s)")
    arguments = parser.parse_args()
    for name in arguments.only:
        began = time.monotonic()
        write(arguments.page, [make_of(name)(arguments.traces)])
        print(f"{name}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
