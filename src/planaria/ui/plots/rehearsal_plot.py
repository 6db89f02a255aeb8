"""Pictures of rehearsals: throughput over time, a line a run, above the nodes. Needs matplotlib (the extra `plot`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planaria.simulate.traces.tally import Curve
from planaria.ui.plots.picture_file import check_picture, save_picture

_COLOURS = ("#1f5f8b", "#c8553d", "#3f7d4e", "#8e5ea2", "#b8860b", "#3aa6a6", "#7a4b2a", "#555555")
_MINUTE_S, _HOUR_S = 60.0, 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One run in the picture.

    Attributes:
        label: for the legend.
        throughput: samples a second over time.
        mean: over the window, drawn as a dotted line.
    """

    label: str
    throughput: Curve
    mean: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """A line of the picture's lower part: nodes."""

    label: str
    count: Curve
    is_dashed: bool = False


def plot_rehearsal(title: str, lines: Sequence[Line], nodes: Sequence[Nodes], targets: Sequence[Path]) -> None:
    """Draws runs into files (PNG, SVG or PDF, by their endings), as Oobleck's Figure 10 and Odyssey's Figure 9 do.

    Raises:
        UserError: matplotlib is not installed, an ending is not known, or a file cannot be written.
    """
    for target in targets:
        check_picture(target)
    from matplotlib.figure import Figure

    # A figure of its own, without pyplot: no window system is looked for and nothing global changes.
    figure = Figure(figsize=(9.0, 4.8), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    curves = [*(line.throughput for line in lines), *(line.count for line in nodes)]
    length_s = max((curve.at_s[-1] for curve in curves), default=0.0)
    scale, unit = (1.0, "seconds") if length_s < 5 * _MINUTE_S else (_MINUTE_S, "minutes")
    scale, unit = (_HOUR_S, "hours") if length_s >= 3 * _HOUR_S else (scale, unit)
    for at, line in enumerate(lines):
        colour = _COLOURS[at % len(_COLOURS)]
        times = [at_s / scale for at_s in line.throughput.at_s]
        upper.plot(times, line.throughput.value, color=colour, linewidth=1.4, label=f"{line.label}, {line.mean:.4g}")
        upper.axhline(line.mean, color=colour, linewidth=1.0, linestyle=":")
    _draw_nodes(lower, nodes, scale)
    upper.set_ylim(0, None)
    upper.set_ylabel("samples a second")
    upper.set_title(title, loc="left")
    lower.set_xlim(0, length_s / scale or None)
    lower.set_xlabel(unit)
    for axes in (upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*upper.get_legend_handles_labels(), loc="outside upper right", frameon=False, ncols=3)
    for target in targets:
        save_picture(figure, target)


def _draw_nodes(axes: Any, nodes: Sequence[Nodes], scale: float) -> None:
    for line in nodes:
        times = [at_s / scale for at_s in line.count.at_s]
        style: dict[str, Any] = {"linestyle": "--", "color": "#999999"} if line.is_dashed else {"color": "#333333"}
        axes.step(times, line.count.value, where="post", linewidth=1.2, label=line.label, **style)
        if not line.is_dashed:
            axes.fill_between(times, line.count.value, step="post", alpha=0.1, color="#333333")
    axes.set_ylim(0, None)
    axes.set_ylabel("nodes")
    axes.yaxis.get_major_locator().set_params(integer=True)
    if len(nodes) > 1:
        axes.legend(loc="lower left", frameon=False, ncols=len(nodes))
