"""A picture of simulated runs: nodes and throughput over time, and where the time went. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from planaria.simulate.results import RunResult, summarise
from planaria.simulate.traces.trace import HOUR_S
from planaria.ui.plots.picture_file import check_picture, save_picture

LINE_COLOURS = ("#1f5f8b", "#c0612b", "#3a7d44", "#7a4f9a", "#b03a2e", "#8a6d1f", "#2a9d8f", "#5c6670", "#9a9a9a")
_CAUSES = {
    "redone": "#c0612b",
    "detection": "#b03a2e",
    "decision": "#7a4f9a",
    "transfer": "#d9a441",
    "restart": "#8a6d1f",
    "checkpoint": "#3a7d44",
    "idle": "#c9ced3",
}
LEGEND_COLUMNS = 5
"""Names in a row of the legend; more are wider than the picture."""

_POINTS = 400
"""Most points of a line: throughput is averaged over so many parts."""


def plot_runs(runs: Mapping[str, Sequence[RunResult]], target: Path) -> None:
    """Draws each policy's first run, and the mean shares of all of its runs, into a file.

    Args:
        runs: by policy, each with at least one; the first ones have timelines.
        target: the file of the picture.

    Raises:
        UserError: matplotlib is not installed, the ending is not known, or the file cannot be written.
    """
    check_picture(target)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 6.4 + 0.25 * len(runs)), layout="constrained")
    nodes, rates, shares = figure.subplots(3, 1, height_ratios=(1.0, 1.8, 0.5 + 0.28 * len(runs)))
    colours = {policy: LINE_COLOURS[at % len(LINE_COLOURS)] for at, policy in enumerate(runs)}
    _draw_nodes(nodes, runs)
    _draw_rates(rates, runs, colours)
    rates.sharex(nodes)
    nodes.tick_params(labelbottom=False)
    nodes.set_xlim(0, max(run.seconds for of in runs.values() for run in of[:1]) / HOUR_S)
    _draw_shares(shares, runs)
    for axes in (nodes, rates, shares):
        axes.spines[["top", "right"]].set_visible(False)
    save_picture(figure, target)


def _draw_nodes(axes: Any, runs: Mapping[str, Sequence[RunResult]]) -> None:
    first = max((of[0] for of in runs.values()), key=lambda run: len({n for _, n, _ in run.timeline}))
    hours = [at / HOUR_S for at, _, _ in first.timeline]
    counts = [count for _, count, _ in first.timeline]
    if hours:
        axes.step([*hours, first.seconds / HOUR_S], [*counts, counts[-1]], where="post", color="#5c6670", linewidth=1.2)
    axes.set_ylim(0, None)
    axes.set_ylabel("nodes")
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set_title(first.trace, loc="left")


def _draw_rates(axes: Any, runs: Mapping[str, Sequence[RunResult]], colours: Mapping[str, str]) -> None:
    for policy, of in runs.items():
        run = of[0]
        hours, rates = averaged_rates(run)
        axes.step(
            hours, rates, where="post", linewidth=1.3, linestyle=style_of(policy), color=colours[policy], label=policy
        )
    axes.set_ylim(0, None)
    axes.set_xlabel("hours")
    axes.set_ylabel("samples a second")
    axes.legend(
        loc="lower right", bbox_to_anchor=(1, 1), frameon=False, ncols=min(len(runs), LEGEND_COLUMNS), fontsize="small"
    )


def style_of(policy: str) -> str:
    """Returns the line style: references are told from policies by broken lines."""
    return "--" if policy in ("ideal", "on-demand") else "-"


def averaged_rates(run: RunResult) -> tuple[list[float], list[float]]:
    """Returns hours, and throughput from each on: averaged over equal parts where more changes than can be seen."""
    if len(run.timeline) <= _POINTS:
        last = run.timeline[-1][2] if run.timeline else 0.0
        return [*(at / HOUR_S for at, _, _ in run.timeline), run.seconds / HOUR_S], [
            *(rate for _, _, rate in run.timeline),
            last,
        ]
    width = run.seconds / _POINTS
    sums = [0.0] * _POINTS
    ends = [at for at, _, _ in run.timeline[1:]] + [run.seconds]
    for (at, _, rate), end in zip(run.timeline, ends, strict=True):
        while at < end:
            slot = min(_POINTS - 1, int(at / width))
            upto = end if slot == _POINTS - 1 else min(end, (slot + 1) * width)
            if upto <= at:
                break
            sums[slot] += rate * (upto - at)
            at = upto
    return [slot * width / HOUR_S for slot in range(_POINTS)], [total / width for total in sums]


def _draw_shares(axes: Any, runs: Mapping[str, Sequence[RunResult]]) -> None:
    """Draws the shares of time that were not trained, by cause."""
    names = list(runs)
    left = [0.0] * len(names)
    summaries = [summarise(of) for of in runs.values()]
    for cause, colour in _CAUSES.items():
        shares = [100 * summary.share_by.get(cause, 0.0) for summary in summaries]
        if any(share > 0 for share in shares):
            axes.barh(names, shares, left=left, color=colour, height=0.62, label=cause)
            left = [before + share for before, share in zip(left, shares, strict=True)]
    axes.invert_yaxis()
    axes.set_xlim(0, 1.05 * max(left) if max(left) > 0 else 1)
    axes.set_xlabel("% of the time that is not trained")
    if max(left) > 0:
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), frameon=False, ncols=7, fontsize="small",
                    columnspacing=1.0, handlelength=1.0)  # fmt: skip
