"""The command: `python -m tests.testkit.mutants.command`, which tells what of the protocol nothing would miss."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import click

import planaria
from tests.testkit.mutants.explained import explanation_of
from tests.testkit.mutants.sites import Site, sites_of
from tests.testkit.mutants.trial import Outcome, Trial, reached_by, try_all

SOURCES = Path(planaria.__file__).parent
ROOMS = ("protocol", "plan/ledger.py")
"""What is changed: the protocol, and what counts contributions."""


def sources() -> list[Path]:
    """Returns the files that are changed."""
    found = [SOURCES / room for room in ROOMS]
    return sorted(path for room in found for path in (room.rglob("*.py") if room.is_dir() else [room]))


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--number", type=click.IntRange(1), default=300, show_default=True, help="How many changes to try.")
@click.option("--seed", type=int, default=0, show_default=True, help="That draws them.")
@click.option("--room", default="", help="Only sources whose path has this in it.")
@click.option("--schedules", type=click.IntRange(1), default=40, show_default=True, help="Tried with each, at most.")
@click.option("--first", type=click.IntRange(0), default=500_000, show_default=True, help="Of their seeds, the first.")
@click.option("--jobs", type=click.IntRange(1), default=None, help="Processes.  [default: one a core]")
def command(number: int, seed: int, room: str, schedules: int, first: int, jobs: int | None) -> None:
    """Changes the protocol by machine, in one small way at a time, and tries random schedules in virtual time until
    one breaks a promise. Tells the share that is found, by room, and every change that none of them found."""
    paths = [path for path in sources() if room in str(path)]
    sites = [site for path in paths for site in sites_of(path)]
    drawn = random.Random(seed).sample(sites, min(number, len(sites)))
    click.echo(f"{len(drawn)} of {len(sites)} changes in {len(paths)} files, drawn with seed {seed}")
    reached = reached_by(range(first, first + schedules), paths)
    trials = []
    for trial in try_all(sorted(drawn, key=lambda site: (site.path, site.index)), reached, jobs or os.cpu_count() or 1):
        trials.append(trial)
        if trial.outcome in (Outcome.MISSED, Outcome.NOT_REACHED):
            click.echo(told(trial))
    click.echo("\n".join(summary(trials)))


def told(trial: Trial) -> str:
    """Returns a line on a change."""
    site, outcome = trial.site, trial.outcome.value
    if trial.outcome is Outcome.MISSED and (found := explanation_of(site, SOURCES)) is not None:
        outcome += f" ({found.why})"
    return f"{outcome}: {_name(site)}:{site.lines[0]} ({site.function[0]}): {site.what}: {site.text}"


def summary(trials: list[Trial]) -> list[str]:
    """Returns a table: what became of the changes of each room."""
    counts = {room: Counter[Outcome]() for room in sorted({_room(trial.site) for trial in trials})}
    for trial in trials:
        counts[_room(trial.site)][trial.outcome] += 1
    explained = Counter(_room(trial.site) for trial in trials if _is_explained(trial))
    explained["all"] = explained.total()
    lines = [f"{'':24}{'changes':>9}{'not reached':>13}{'missed':>8}{'explained':>11}{'found':>7}{'share':>8}"]
    for room, count in [*counts.items(), ("all", sum(counts.values(), Counter[Outcome]()))]:
        found = count[Outcome.FOUND] + count[Outcome.HUNG]
        missed, unreached = count[Outcome.MISSED], count[Outcome.NOT_REACHED]
        share = f"{found / (found + missed):.0%}" if found + missed else ""
        lines.append(f"{room:24}{count.total():9}{unreached:13}{missed:8}{explained[room]:11}{found:7}{share:>8}")
    return lines


def _is_explained(trial: Trial) -> bool:
    """Returns whether it is known why nothing notices a change."""
    return trial.outcome is Outcome.MISSED and explanation_of(trial.site, SOURCES) is not None


def _name(site: Site) -> str:
    return str(site.path.relative_to(SOURCES))


def _room(site: Site) -> str:
    return str(site.path.relative_to(SOURCES).parent)


if __name__ == "__main__":
    command(prog_name="python -m tests.testkit.mutants.command")
