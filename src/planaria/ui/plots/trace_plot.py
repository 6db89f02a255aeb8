"""A picture of a trace: nodes over time, and the losses as marks. Needs matplotlib (the extra `plot`)."""

from __future__ import annotations

from pathlib import Path

from planaria.simulate.traces.trace import HOUR_S, Change, Trace
from planaria.ui.plots.picture_file import check_picture, save_picture


def plot_trace(trace: Trace, target: Path) -> None:
    """Draws a trace into a file.

    Raises:
        UserError: matplotlib is not installed, the ending is not known, or the file cannot be written.
    """
    check_picture(target)
    from matplotlib.figure import Figure

    # A figure of its own, without pyplot: no window system is looked for and nothing global changes.
    figure = Figure(figsize=(9.0, 3.2), layout="constrained")
    axes = figure.add_subplot()
    counts = list(trace.counts())
    hours = [at_s / HOUR_S for at_s, _ in counts] + [trace.horizon_s / HOUR_S]
    nodes = [count for _, count in counts]
    axes.step(hours, [*nodes, nodes[-1]], where="post", linewidth=1.4, color="#1f5f8b", label="nodes")
    axes.fill_between(hours, [*nodes, nodes[-1]], step="post", alpha=0.12, color="#1f5f8b")
    lost = [event.at_s / HOUR_S for event in trace.events if event.change is Change.REMOVE]
    if lost:
        axes.plot(lost, [0] * len(lost), "|", markersize=9, color="#b03a2e", label="losses", clip_on=False)
    axes.set_xlim(0, trace.horizon_s / HOUR_S)
    axes.set_ylim(0, None)
    axes.set_xlabel("hours")
    axes.set_ylabel("nodes")
    axes.set_title(trace.name, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), frameon=False, ncols=2, borderaxespad=0)
    save_picture(figure, target)
