"""The report of drills and comparisons: throughput over time with the losses marked, nodes, tables of totals."""

from __future__ import annotations

from collections.abc import Sequence

from planaria.plan.quantities import count
from planaria.runtime.launch.rehearsal.comparison import Comparison, Row
from planaria.runtime.launch.rehearsal.rehearsal import Rehearsed
from planaria.runtime.run_folder.sentences import duration
from planaria.simulate.traces.tally import Curve, RunTally
from planaria.ui.report.sheets import Chart, Line, Mark, Section, Sheet, Table, changes, line_kind, steps

_MARKED = "Red lines: nodes lost. Green: nodes joined."


def comparison_sheet(name: str, comparison: Comparison) -> Sheet:
    """Returns the report of a comparison.

    Args:
        name: its title.
        comparison: as `planaria compare` leaves it.
    """
    runs = [row.rehearsed for row in comparison.rows if row.rehearsed is not None]
    expected = next((run.script_nodes for run in runs if run.script_nodes is not None), None)
    nodes = expected or next((run.live_nodes for run in runs if run.live_nodes is not None), None)
    lines = [
        Line(name=run.policy.value, kind=line_kind(at), points=_points(run.throughput))
        for at, run in enumerate(runs)
        if run.throughput is not None
    ]
    sections = []
    if nodes is not None and lines:
        drawn = [Line(name="of the script" if expected else "", kind="nodes", points=_held(nodes))]
        sections.append(_over_time(lines, drawn, _marks(nodes)))
    heads, rows = comparison_table(comparison)
    sections.append(Section(title="Totals", table=Table(heads=heads, rows=rows), notes=tuple(remarks(comparison))))
    subtitle = (
        f"{comparison.job} on {count(comparison.nodes, 'node')} under {count(len(comparison.rows), 'policy')}, "
        f"script {comparison.script}. Processes, kills and recoveries are real, the compute is emulated."
    )
    return Sheet(title=name, subtitle=subtitle, sections=tuple(sections))


def drill_sections(ended: Rehearsed) -> list[Section]:
    """Returns what a drill adds to the report of its run."""
    if ended.tally is None or ended.throughput is None or ended.live_nodes is None:
        return []
    nodes = [Line(name="of the job", kind="nodes", points=_held(ended.live_nodes))]
    if ended.script_nodes is not None:
        nodes.append(Line(name="of the script", kind="planned", points=_held(ended.script_nodes)))
    line = Line(name="", kind="speed", points=_points(ended.throughput))
    over_time = _over_time([line], nodes, _marks(ended.live_nodes))
    totals = Table(heads=("figure", ended.script), rows=tuple(drill_figures(ended, ended.tally)))
    return [over_time, Section(title="The drill in figures", table=totals)]


def _over_time(lines: Sequence[Line], nodes: Sequence[Line], marks: tuple[Mark, ...]) -> Section:
    return Section(
        title="Throughput while the script was played",
        charts=(
            Chart(label="Samples a second", lines=tuple(lines), marks=marks),
            Chart(label="Nodes", lines=tuple(nodes), marks=marks, height=130),
        ),
        notes=(_MARKED,),
    )


def _points(curve: Curve) -> tuple[tuple[float, float | None], ...]:
    return tuple(zip(curve.at_s, curve.value, strict=True))


def _held(curve: Curve) -> tuple[tuple[float, float | None], ...]:
    return steps(curve.at_s, curve.value)


def _marks(nodes: Curve) -> tuple[Mark, ...]:
    return changes(zip(nodes.at_s, nodes.value, strict=True))


def drill_figures(ended: Rehearsed, tally: RunTally) -> list[tuple[str, str]]:
    """Returns a drill's figures, each with its name."""
    nodes = f"{tally.lost} lost, {tally.released} released after a notice, {tally.joined} joined"
    if ended.unplanned_losses:
        nodes += f"; {ended.unplanned_losses} lost though the script did not take them"
    if tally.waits:
        nodes += f"; {count(tally.waits, 'time')} too few, and waited for others"
    rows = [
        ("samples a second", f"{tally.samples_per_s:.4g}, over {duration(tally.window_s)}"),
        ("steps", f"{tally.steps:.1f}, {tally.committed} commits"),
        ("nodes", nodes),
        ("recoveries", _recoveries(tally) or "none"),
        ("steps trained again", f"{tally.restored_steps}"),
        ("run again in others", count(tally.rerun_microbatches, "microbatch")),
        (
            "samples",
            f"{tally.dropped_samples} dropped by the policy, {tally.skipped_samples} skipped, "
            f"{tally.duplicated_samples} counted twice",
        ),
    ]
    if tally.mean_pause_s is not None:
        rows.insert(4, ("loss to next commit", f"{duration(tally.mean_pause_s)} on average"))
    if tally.estimate.step_error is not None:
        off = f"{tally.estimate.step_error:.1%} off on average, over {count(tally.estimate.plans, 'plan')}"
        rows.append(("estimates of steps", off))
    if tally.estimate.transitions_measured_s:
        thought, took = tally.estimate.transitions_estimated_s, tally.estimate.transitions_measured_s
        rows.append(("transitions, in all", f"{duration(thought)} estimated, {duration(took)} measured"))
    return rows


def _recoveries(tally: RunTally) -> str:
    return ", ".join(f"{count} by {kind}" for kind, count in tally.recoveries.items())


def comparison_table(comparison: Comparison) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Returns the headings of the table of totals, and a row for each policy."""
    heads = ("policy", "samples/s", "of best", "recoveries", "pause", "steps redone", "rerun", "dropped")
    return heads, tuple(_cells(row, comparison.best) for row in comparison.rows)


def _cells(row: Row, best: float) -> tuple[str, ...]:
    tally = row.rehearsed.tally if row.rehearsed is not None else None
    if tally is None:
        return (row.policy.value, *["-"] * 7)
    return (
        row.policy.value,
        f"{row.samples_per_s:.4g}",
        f"{row.samples_per_s / best if best else 0.0:.1%}",
        _recoveries(tally) or "none",
        "-" if tally.mean_pause_s is None else duration(tally.mean_pause_s),
        str(tally.restored_steps),
        str(tally.rerun_microbatches),
        str(tally.dropped_samples),
    )


def remarks(comparison: Comparison) -> list[str]:
    """Returns what was wrong with any policy's run, a line each."""
    return [
        f"{row.policy.value}: {remark}" for row in comparison.rows for remark in (row.reason, _unplanned(row)) if remark
    ]


def _unplanned(row: Row) -> str:
    lost = row.rehearsed.unplanned_losses if row.rehearsed is not None else 0
    return f"{count(lost, 'node')} lost though the script did not take them" if lost else ""
