"""`planaria drill` and `planaria compare`: a job under a script of failures. Reads arguments only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from planaria.ui.cli.options import JOB_FILE, Finite, set_option

_POSITIVE = Finite(min=0, min_open=True)
_Command = TypeVar("_Command", bound=Callable[..., Any])


def _script_options(command: _Command) -> _Command:
    """Adds the options that say what is played, and on which costs."""
    options = (
        click.option("--speed", type=_POSITIVE, metavar="X", help="Play a file's events X times as fast."),
        click.option("--from", "start_h", type=Finite(min=0), metavar="HOURS", help="Begin there in a file."),
        click.option("--hours", "length_h", type=_POSITIVE, metavar="HOURS", help="Take so much of a file."),
        click.option(
            "--busiest", "busiest_h", type=_POSITIVE, metavar="HOURS",
            help="Take the part of a file, so long, in which most nodes come and go.",
        ),
        click.option(
            "--notice", type=_POSITIVE, metavar="SECONDS",
            help="Announce each removal so long before, by the script's clock, where it is not announced.",
        ),
        click.option(
            "--length", "length_s", type=_POSITIVE, metavar="SECONDS",
            help="How long a built-in script is.  [default: 24 to 36 steps, at least 10 s]",
        ),
        click.option(
            "--profile", type=JOB_FILE, metavar="FILE",
            help="Take times from this profile.  [default: the job's, or one measured on this machine]",
        ),
        click.option("--seed", default=0, show_default=True, help="Draws who goes, where a file has only counts."),
        set_option,
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@click.argument("job", type=JOB_FILE)
@click.option(
    "--trace", "script", required=True, metavar="FILE|NAME",
    help="A trace (`planaria trace`, docs/howto/traces.md), or a built-in script: single, burst-in-stage, "
    "burst-in-pipeline, steady-loss, loss-and-rejoin.",
)  # fmt: skip
@_script_options
@click.option(
    "--name", metavar="NAME", help="Of the run, and of its folder.  [default: the job's, with -drill, -drill-2, ...]"
)
@click.option("--verify", is_flag=True, help="Compare losses and weights with one process alone, bit for bit.")
def drill(job: Path, overrides: tuple[str, ...], name: str | None, verify: bool, **wanted: Any) -> int:
    """Rehearse JOB: play a trace of nodes that come and go on real processes with emulated devices.

    Processes, messages, kills, plans and recoveries are real; layers take the times of a profile. Nodes that the trace
    takes away are killed, those that it announces get notice before. Leaves a run folder with drill.json and pictures.

    \b
    Examples:
      planaria drill job.toml --trace loss-and-rejoin
      planaria drill job.toml --trace spot.csv --busiest 0.5 --speed 60

    \b
    Exit code:
      0 the trace was played to its end    1 failed    2 a mistake in the job, the trace or the command
      3 exhausted: too few nodes were left    130 Ctrl-C    143 SIGTERM    129 SIGHUP
    """
    from planaria.ui.cli.rehearsal import run

    return run.drill(job, overrides, run.RehearsalOptions(**wanted), name, verify=verify)


@click.command()
@click.argument("job", type=JOB_FILE)
@click.option(
    "--script", required=True, metavar="FILE|NAME",
    help="What befalls the nodes: single, burst-in-stage, burst-in-pipeline, steady-loss, loss-and-rejoin, or the file "
    "of a trace, in seconds or in steps (docs/howto/drills.md).",
)  # fmt: skip
@click.option("--policies", metavar="A,B,...", help="Which policies, in this order.  [default: all]")
@_script_options
@click.option(
    "--name", metavar="NAME", help="Of the folder with all of it.  [default: the job's, with -compare, -compare-2, ...]"
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of the table.")
def compare(
    job: Path, overrides: tuple[str, ...], policies: str | None, name: str | None, as_json: bool, **wanted: Any
) -> int:
    """Run JOB under each policy with the same failures, on real processes with emulated devices.

    Prints a table, and leaves a folder with compare.json, a picture of throughput over time, and each policy's run. A
    policy under which the job fails is a row of the table, too.

    \b
    Examples:
      planaria compare job.toml --script steady-loss
      planaria compare job.toml --script spot.csv --busiest 1 --speed 60 --policies templates,adaptive

    \b
    Exit code:
      0 compared    1 the job ran under no policy    2 a mistake in the job, the script or the command
      130 Ctrl-C    143 SIGTERM    129 SIGHUP
    """
    from planaria.ui.cli.rehearsal import run

    return run.compare(job, overrides, run.RehearsalOptions(**wanted), name, policies, as_json=as_json)
