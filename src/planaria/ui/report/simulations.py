"""The report of simulations: policies over each other, over time or over what a sweep varied; tables of totals."""

from __future__ import annotations

from collections.abc import Sequence

from planaria.simulate.results import Estimate, Outcome, RunResult, Summary
from planaria.simulate.traces.trace import HOUR_S
from planaria.ui.plots.simulation_plot import averaged_rates, style_of
from planaria.ui.plots.sweep_plot import FIELD_NAMES, SWEEP_ROWS, columns_of, varied_most
from planaria.ui.report.sheets import Chart, Line, Points, Section, Shares, Sheet, Table, changes, line_kind, steps

Columns = list[tuple[str, list[str]]]
"""Columns by name, each with the cells below it; the first are those of the rows."""

_CAUSES = ("training", "redone", "detection", "decision", "transfer", "restart", "checkpoint", "idle")
_NO_TIMELINE = "Nothing over time: simulate with --report, or with --json --timeline."


def simulation_sheet(name: str, outcomes: Sequence[Outcome]) -> Sheet:
    """Returns the report of simulated scenarios, which has at least one.

    Args:
        name: its title.
        outcomes: as `planaria simulate --json` tells them.
    """
    along = varied_most(outcome.varied for outcome in outcomes)
    sections = [] if along is None else _over(outcomes, along)
    for outcome in outcomes:
        varied = ", ".join(f"{FIELD_NAMES.get(name, name)} = {value:g}" for name, value in outcome.varied.items())
        sections += _outcome(outcome, f": {varied}" if varied else "", is_swept=along is not None)
    runs = sum(len(of) for outcome in outcomes for of in outcome.runs.values())
    policies = dict.fromkeys(summary.policy for outcome in outcomes for summary in outcome.summaries)
    return Sheet(
        title=name, subtitle=f"{runs} simulated runs under {', '.join(policies)}. Nothing was trained.",
        sections=tuple(sections),
    )  # fmt: skip


def _outcome(outcome: Outcome, suffix: str, *, is_swept: bool) -> list[Section]:
    first = {policy: of[0] for policy, of in outcome.runs.items() if of}
    drawn = {policy: run for policy, run in first.items() if run.timeline}
    num = max((len(of) for of in outcome.runs.values()), default=0)
    notes = [f"Mean of {num} runs, with half the 95% interval."] if num > 1 else []
    notes.append("Value: samples a second for a dollar an hour.")
    for summary in outcome.summaries:
        if summary.survived:
            ways = ", ".join(f"{number:.3g} by {how}" for how, number in summary.survived.items())
            notes.append(f"{summary.policy}: losses survived: {ways}.")
    sections = [_over_time(drawn, suffix)] if drawn else []
    if not drawn and not is_swept:
        notes.append(_NO_TIMELINE)
    sections.append(Section(title=f"Totals{suffix}", table=_table(figures(outcome)), notes=tuple(notes)))
    if not is_swept:
        shares = tuple(_shares(summary) for summary in outcome.summaries if summary.share_by)
        sections.append(Section(title="Where the time went", shares=shares))
    return sections


def _over_time(runs: dict[str, RunResult], suffix: str) -> Section:
    # References have nodes that nobody takes: the trace is the one with the most changes.
    trace = max(runs.values(), key=lambda run: len({count for _, count, _ in run.timeline}))
    counts = [(0.0, float(trace.timeline[0][1])), *((at, float(count)) for at, count, _ in trace.timeline)]
    counts.append((trace.seconds, counts[-1][1]))
    marks = changes(counts)
    rates = [
        Line(name=policy, kind=f"{line_kind(at)}{' dashed' if style_of(policy) == '--' else ''}", points=_rates(run))
        for at, (policy, run) in enumerate(runs.items())
    ]
    nodes = Line(name="", kind="nodes", points=steps([at for at, _ in counts], [count for _, count in counts]))
    return Section(
        title=f"Throughput over time{suffix}",
        charts=(
            Chart(label="Samples a second", lines=tuple(rates), marks=marks),
            Chart(label=f"Nodes: {trace.trace}", lines=(nodes,), marks=marks, height=130),
        ),
        notes=("Red lines: nodes lost. Green: nodes joined. Of several runs, the first.",),
    )


def _rates(run: RunResult) -> Points:
    hours, rates = averaged_rates(run)
    return steps([at * HOUR_S for at in hours], rates)


def _over(outcomes: Sequence[Outcome], along: str) -> list[Section]:
    """Returns means over what was varied most, a section for each combination of the rest."""
    sections = []
    for title, points in columns_of([(outcome.varied, outcome.summaries) for outcome in outcomes], along).items():
        policies = dict.fromkeys(summary.policy for _, summaries in points for summary in summaries)
        charts = []
        for key, label in SWEEP_ROWS:
            lines = []
            for at, policy in enumerate(policies):
                found = [
                    (varied[along], summary.figures[key])
                    for varied, summaries in points
                    for summary in summaries
                    if summary.policy == policy
                ]
                band = tuple((x, f.mean - f.half_width, f.mean + f.half_width) for x, f in found if f.half_width)
                line = Line(name=policy, kind=line_kind(at), points=tuple((x, f.mean) for x, f in found), band=band)
                lines.append(line)
            charts.append(Chart(label=" ".join(label.split()), lines=tuple(lines), word=FIELD_NAMES[along]))
        heading = f"Over {FIELD_NAMES[along]}"
        sections.append(Section(title=f"{heading}: {title}" if title else heading, charts=tuple(charts)))
    return sections


def _shares(summary: Summary) -> Shares:
    seconds = summary.figures["hours"].mean * HOUR_S
    parts = tuple((cause, summary.share_by.get(cause, 0.0) * seconds, f"cause-{cause}") for cause in _CAUSES)
    return Shares(name=summary.policy, parts=parts)


def _table(columns: Columns) -> Table:
    heads = tuple(name for name, _ in columns)
    return Table(heads=heads, rows=tuple(zip(*(cells for _, cells in columns), strict=True)))


def figures(outcome: Outcome) -> Columns:
    """Returns the table of totals: a row for each policy."""
    shown = (
        ("samples/s", "samples_per_s", 1),
        ("trains", "effective", -1),
        ("$/h", "cost_per_hour", 2),
        ("value", "value", 2),
        ("hours", "hours", 2),
        ("nodes", "mean_nodes", 1),
        ("losses", "losses", 1),
        *([("devices", "device_losses", 1)] if any(s.figures["device_losses"].mean for s in outcome.summaries) else []),
        ("fatal", "fatal", 1),
        ("waits", "waits", 1),
    )
    columns: Columns = [("policy", [summary.policy for summary in outcome.summaries])]
    for name, key, digits in shown:
        found = [summary.figures[key] for summary in outcome.summaries]
        columns.append((name, [f"{figure.mean:.1%}" if digits < 0 else _shown(figure, digits) for figure in found]))
    return columns


def where_the_time_went(outcome: Outcome) -> Columns:
    """Returns the table of the time's shares by cause: a row for each policy."""
    causes = [cause for cause in _CAUSES if any(s.share_by.get(cause, 0.0) > 0 for s in outcome.summaries)]
    columns: Columns = [("policy", [summary.policy for summary in outcome.summaries])]
    return columns + [(cause, [_share(s.share_by.get(cause, 0.0)) for s in outcome.summaries]) for cause in causes]


def _share(share: float) -> str:
    if share <= 0:
        return "-"
    return f"{share:.2%}" if share >= 0.0001 else "<0.01%"


def _shown(figure: Estimate, digits: int) -> str:
    text = f"{figure.mean:.{digits}f}"
    return f"{text} ±{figure.half_width:.{digits}f}" if figure.half_width > 0 else text
