"""`planaria simulate`: what a job would do on a cluster that fails, under each policy. Reads arguments only."""

from __future__ import annotations

import os
from pathlib import Path

import click

from planaria.ui.cli.options import FILE, JOB_FILE, set_option


@click.command()
@click.argument("scenario", type=JOB_FILE)
@set_option
@click.option("--policy", "policies", multiple=True, metavar="NAME", help="Instead of job.policies; may be repeated.")
@click.option("--runs", type=click.IntRange(min=1), metavar="N", help="Instead of failures.runs: seeds.")
@click.option("--sweep", is_flag=True, help="Every combination of what [sweep] lists.")
@click.option("--results", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER",
              help="Keep results there, and simulate only what is not there yet.")  # fmt: skip
@click.option("--processes", type=click.IntRange(min=1), metavar="N", help="That compute.  [default: one a core]")
@click.option("--calibrate", "calibrated", type=click.Path(path_type=Path), metavar="RUN",
              help="Take timings from what this run's events say of them.")  # fmt: skip
@click.option("--plot", "plots", multiple=True, type=FILE, metavar="FILE",
              help="Draw throughput, nodes, lost time; of a sweep means (PNG, SVG, PDF: by the ending).")  # fmt: skip
@click.option("--report", "report", type=FILE, metavar="FILE", help="Write a report of it, one HTML file.")
@click.option(
    "--timeline", is_flag=True, help="With --json: each run's nodes and throughput over time, of the first 25 seeds."
)
@click.option("--json", "as_json", is_flag=True, help="Print every run and the means as JSON.")
def simulate(
    scenario: Path,
    overrides: tuple[str, ...],
    policies: tuple[str, ...],
    runs: int | None,
    sweep: bool,
    results: Path | None,
    processes: int | None,
    calibrated: Path | None,
    plots: tuple[Path, ...],
    report: Path | None,
    timeline: bool,
    as_json: bool,
) -> int:
    """Simulate SCENARIO: a job, a cluster, how its nodes fail, and prices. Nothing is trained.

    The policies, the planner and the coordinator's transitions are those that run for real. docs/howto/simulate.md says
    what a scenario has, and what is not modelled.

    \b
    Examples:
      planaria simulate examples/scenarios/spot.toml
      planaria simulate scenario.toml --policy adaptive --policy ideal --runs 20 --plot spot.png
      planaria simulate scenario.toml --sweep --results sweep/
    """
    if timeline and not as_json:
        raise click.UsageError("--timeline goes with --json. Add that, or draw it by --plot.")
    from planaria.ui.cli.simulation.view import SimulationOptions, show

    wanted = SimulationOptions(
        overrides=overrides,
        policies=policies,
        runs=runs,
        swept=sweep,
        results=results,
        processes=processes or os.cpu_count() or 1,
        calibrated=calibrated,
        plots=plots,
        report=report,
        wants_timeline=timeline,
        as_json=as_json,
    )
    show(scenario, wanted)
    return 0
