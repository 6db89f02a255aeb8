"""A picture of a sweep: throughput, and what a dollar buys, over the value that was varied. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from planaria.simulate.results import Summary
from planaria.ui.plots.picture_file import check_picture, save_picture
from planaria.ui.plots.simulation_plot import LEGEND_COLUMNS, LINE_COLOURS, style_of

Outcomes = Sequence[tuple[Mapping[str, float], Sequence[Summary]]]
"""Outcomes of scenarios: what differs from the others, by the fields of [sweep], and a summary for each policy."""

SWEEP_ROWS = (("samples_per_s", "samples a second"), ("value", "samples a second\nfor a dollar an hour"))
FIELD_NAMES = {
    "nodes": "nodes",
    "fault_tolerance": "f",
    "hourly": "share of the nodes lost in an hour",
    "mean_bulk": "nodes lost together",
}


def varied_most(scenarios: Iterable[Mapping[str, float]]) -> str | None:
    """Returns the field with the most values, of those that differ between scenarios; None: only the policies vary."""
    values: dict[str, set[float]] = {}
    for varied in scenarios:
        for name, value in varied.items():
            values.setdefault(name, set()).add(value)
    return max((name for name, of in values.items() if len(of) > 1), key=lambda name: len(values[name]), default=None)


def plot_sweep(outcomes: Outcomes, along: str, target: Path) -> None:
    """Draws each policy's means with their 95% intervals over one field of [sweep]; beside each other for each
    combination of the other ones.

    Args:
        outcomes: the outcomes of all scenarios.
        along: the field that was varied.
        target: the file of the picture.

    Raises:
        UserError: matplotlib is not installed, the ending is not known, or the file cannot be written.
    """
    check_picture(target)
    from matplotlib.figure import Figure

    beside = columns_of(outcomes, along)
    figure = Figure(figsize=(2.2 + 3.6 * max(2, len(beside)), 6.6), layout="constrained")
    grid = figure.subplots(len(SWEEP_ROWS), len(beside), sharex=True, sharey="row", squeeze=False)
    policies = list(dict.fromkeys(summary.policy for _, summaries in outcomes for summary in summaries))
    colours = {policy: LINE_COLOURS[at % len(LINE_COLOURS)] for at, policy in enumerate(policies)}
    for column, (title, points) in enumerate(beside.items()):
        for (key, label), axes in zip(SWEEP_ROWS, grid[:, column], strict=True):
            _draw(axes, points, along, key, colours)
            if not column:
                axes.set_ylabel(label)
        grid[0, column].set_title(title, loc="left", fontsize="medium")
        grid[-1, column].set_xlabel(FIELD_NAMES[along])
    lines, names = grid[0, 0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside upper right", frameon=False, ncols=min(len(names), LEGEND_COLUMNS))
    save_picture(figure, target)


def columns_of(outcomes: Outcomes, along: str) -> dict[str, Outcomes]:
    """Returns the outcomes by what else varies, each in the order of the field."""
    columns: dict[str, list[tuple[Mapping[str, float], Sequence[Summary]]]] = {}
    for varied, summaries in outcomes:
        title = ", ".join(f"{FIELD_NAMES[name]} = {value:g}" for name, value in varied.items() if name != along)
        columns.setdefault(title, []).append((varied, summaries))
    return {title: sorted(points, key=lambda point: point[0][along]) for title, points in columns.items()}


def _draw(axes: Any, points: Outcomes, along: str, key: str, colours: Mapping[str, str]) -> None:
    for policy, colour in colours.items():
        found = [
            (varied[along], s.figures[key]) for varied, summaries in points for s in summaries if s.policy == policy
        ]
        axes.errorbar(
            [value for value, _ in found],
            [figure.mean for _, figure in found],
            yerr=[figure.half_width for _, figure in found],
            color=colour,
            linestyle=style_of(policy),
            linewidth=1.3,
            marker="o",
            markersize=3.5,
            capsize=2.5,
            label=policy,
        )
    axes.set_ylim(0, None)
    axes.set_xticks([varied[along] for varied, _ in points])
    axes.xaxis.set_major_formatter("{x:g}")
    axes.spines[["top", "right"]].set_visible(False)
