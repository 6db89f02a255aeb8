"""Pictures of the papers' comparisons, as SVG texts that are the same for the same numbers."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#1f5f8b", "#b03a2e", "#3a7d44", "#8e6c1f", "#6c4a8b", "#555555", "#d1752a")


def _axes(height: float = 3.6) -> tuple[Figure, Axes]:
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "planaria"
    # A figure of its own, without pyplot: no window system is looked for.
    figure = Figure(figsize=(9.0, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _legend(figure: Figure) -> None:
    """Below, so that the axes have the whole width."""
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)


def _text(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]], *, x: str, y: str, steps: bool = False, title: str = ""
) -> str:
    """One line a name, of (x, y) points."""
    figure, axes = _axes()
    for at, (name, points) in enumerate(series.items()):
        xs, ys = [point[0] for point in points], [point[1] for point in points]
        style = "steps-post" if steps else "default"
        axes.plot(xs, ys, drawstyle=style, linewidth=1.4, color=COLOURS[at % len(COLOURS)], label=name)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_ylim(0, None)
    axes.margins(x=0)
    axes.set_title(title, loc="left")
    _legend(figure)
    return _text(figure)


def bars(groups: Mapping[str, Mapping[str, float]], *, y: str, title: str = "", logarithmic: bool = False) -> str:
    """For each group a bar for each name; a name that a group does not have leaves a gap."""
    figure, axes = _axes()
    names = list(dict.fromkeys(name for members in groups.values() for name in members))
    width = 0.8 / len(names)
    for at, name in enumerate(names):
        places = [place + (at - (len(names) - 1) / 2) * width for place in range(len(groups))]
        heights = [members.get(name, 0.0) for members in groups.values()]
        axes.bar(places, heights, width * 0.92, color=COLOURS[at % len(COLOURS)], label=name)
    axes.set_xticks(range(len(groups)), list(groups), fontsize=8)
    axes.set_ylabel(y)
    if logarithmic:
        axes.set_yscale("log")
    axes.set_title(title, loc="left")
    _legend(figure)
    return _text(figure)


def shares(rows: Mapping[str, Mapping[str, float]], *, x: str, title: str = "") -> str:
    """For each row a bar of parts that add up to 1."""
    figure, axes = _axes(1.5 + 0.34 * len(rows))
    names = list(dict.fromkeys(name for parts in rows.values() for name in parts))
    left = [0.0] * len(rows)
    for at, name in enumerate(names):
        widths = [parts.get(name, 0.0) for parts in rows.values()]
        axes.barh(range(len(rows)), widths, left=left, height=0.7, color=COLOURS[at % len(COLOURS)], label=name)
        left = [begin + width for begin, width in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel(x)
    axes.set_title(title, loc="left")
    _legend(figure)
    return _text(figure)
