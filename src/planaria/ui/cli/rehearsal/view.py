"""The outcome of a rehearsal, for people: tables on standard output, and pictures in its folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from planaria.job.errors import UserError
from planaria.plan.quantities import count
from planaria.runtime.launch.rehearsal.comparison import Comparison, ComparisonFolder
from planaria.runtime.launch.rehearsal.rehearsal import Rehearsed
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.ui.plots.rehearsal_plot import Line, Nodes, plot_rehearsal
from planaria.ui.report.rehearsals import comparison_table, drill_figures, remarks

_SAID = 5
"""Most differences that are reported one by one."""


def show_drill(ended: Rehearsed, found: list[str] | None) -> None:
    """Prints a drill's figures; `found`: differences from one process alone, None where nobody looked."""
    rows = [("ended", "the script is over" if ended.is_played else f"{ended.status.value}: {ended.message}")]
    if ended.tally is not None:
        rows += drill_figures(ended, ended.tally)
    if found is not None:
        same = "; ".join(found[:_SAID]) if found else "the same losses and weights, bit for bit"
        rows.append(("beside one process", same))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        click.echo(f"{name:{width}}  {value}")


def show_comparison(comparison: Comparison) -> None:
    """Prints a row for each policy, and below them what was wrong with any."""
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(width=140, highlight=False)
    table = Table(box=None, pad_edge=False, header_style="dim")
    heads, rows = comparison_table(comparison)
    for title in heads:
        table.add_column(title, justify="left" if title in ("policy", "recoveries") else "right", overflow="fold")
    for cells in rows:
        table.add_row(*cells)
    console.print(f"{comparison.job}, {count(comparison.nodes, 'node')}, script {comparison.script}")
    console.print(table)
    for remark in remarks(comparison):
        click.echo(remark)


def plot_drill(ended: Rehearsed, folder: RunFolder) -> None:
    """Draws throughput and nodes, those of the trace beside them."""
    if ended.tally is None or ended.throughput is None or ended.live_nodes is None:
        return
    line = Line(label=ended.policy.value, throughput=ended.throughput, mean=ended.tally.samples_per_s)
    nodes = [Nodes(label="of the job", count=ended.live_nodes)]
    if ended.script_nodes is not None:
        nodes.append(Nodes(label="of the trace", count=ended.script_nodes, is_dashed=True))
    _plotted(f"{folder.path.name}: {ended.script}", [line], nodes, folder.drill_plots)


def plot_comparison(comparison: Comparison, folder: ComparisonFolder) -> None:
    """Draws a line for each policy."""
    ended = [row.rehearsed for row in comparison.rows if row.rehearsed is not None]
    lines = [
        Line(label=run.policy.value, throughput=run.throughput, mean=run.tally.samples_per_s)
        for run in ended
        if run.tally is not None and run.throughput is not None
    ]
    if not lines:
        return
    expected = next((run.script_nodes for run in ended if run.script_nodes is not None), None)
    counts = expected or next(run.live_nodes for run in ended if run.live_nodes is not None)
    nodes = [Nodes(label="of the script", count=counts)]
    _plotted(f"{comparison.job}: {comparison.script}", lines, nodes, folder.plots)


def _plotted(title: str, lines: Sequence[Line], nodes: Sequence[Nodes], targets: Sequence[Path]) -> None:
    """Draws a picture, if possible: what was measured is kept without it."""
    try:
        plot_rehearsal(title, lines, nodes, targets)
    except UserError as error:
        click.echo(f"planaria: warning: no picture was drawn: {error}", err=True)
