"""The command: `python -m tests.testkit.mutants.command`, which tells what of the protocol nothing would miss."""

from __future__ import annotations

import importlib
import os
import random
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import click

import planaria
from tests.testkit.mutants.explained import explanation_of
from tests.testkit.mutants.sites import Site, sites_of
from tests.testkit.mutants.suite import failing, reached_by_tests
from tests.testkit.mutants.trial import Outcome, Trial, noticing, reached_by, try_all

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
    one breaks a promise. What none of them breaks goes to tests. Tells the share that is found or explained, by room,
    and every change that is not found. Exit code 1 where one is neither found nor explained."""
    paths = [path for path in sources() if room in str(path)]
    sites = [site for path in paths for site in sites_of(path)]
    drawn = random.Random(seed).sample(sites, min(number, len(sites)))
    drawn.sort(key=lambda site: (site.path, site.index))
    click.echo(f"{len(drawn)} of {len(sites)} changes in {len(paths)} files, drawn with seed {seed}")
    jobs = jobs or os.cpu_count() or 1
    for path in paths:  # what is not loaded cannot be changed, and tests load more than schedules do
        importlib.import_module(".".join(path.relative_to(SOURCES.parent).with_suffix("").parts))
    reached = reached_by(range(first, first + schedules), paths)
    trials = [_told_at_once(trial) for trial in try_all(drawn, reached, noticing, jobs)]
    left = [trial.site for trial in trials if not trial.is_found]
    click.echo(f"{len(left)} are found by no schedule, and go to tests")
    again = [_told_at_once(trial) for trial in try_all(left, reached_by_tests(paths), failing, jobs)]
    tested = {trial.site for trial in again if trial.is_found}
    trials = [replace(t, outcome=Outcome.TESTED) if t.site in tested else t for t in trials]
    missed = [trial for trial in trials if not trial.is_found]
    click.echo("\n".join(["", *map(told, missed), *summary(trials)]))
    sys.exit(any(explanation_of(trial.site, SOURCES) is None for trial in missed))


def _told_at_once(trial: Trial) -> Trial:
    """Tells what a judge made of a change: it may be long until all are tried."""
    click.echo(told(trial))
    return trial


def told(trial: Trial) -> str:
    """Returns a line on a change."""
    site, outcome = trial.site, trial.outcome.value
    if not trial.is_found and (explanation := explanation_of(site, SOURCES)) is not None:
        outcome += f" ({explanation.why})"
    return f"{outcome}: {_name(site)}:{site.lines[0]} ({site.function[0]}): {site.what}: {site.text}"


def summary(trials: list[Trial]) -> list[str]:
    """Returns a table: what became of the changes of each room."""
    counts = {room: Counter[str]() for room in sorted({_room(trial.site) for trial in trials})}
    for trial in trials:
        counts[_room(trial.site)][_column(trial)] += 1
    lines = [f"{'':24}{'changes':>9}" + "".join(f"{name:>{len(name) + 3}}" for name in COLUMNS) + f"{'share':>8}"]
    for room, count in [*counts.items(), ("all", sum(counts.values(), Counter[str]()))]:
        numbers = "".join(f"{count[name]:{len(name) + 3}}" for name in COLUMNS)
        share = 1 - (count[MISSED] + count[NOT_REACHED]) / count.total()
        lines.append(f"{room:24}{count.total():9}{numbers}{share:>8.0%}")
    return lines


SCHEDULES, TESTS, EXPLAINED, MISSED, NOT_REACHED = "schedules", "tests", "explained", "missed", "not reached"
COLUMNS = (SCHEDULES, TESTS, EXPLAINED, MISSED, NOT_REACHED)
"""Of what became of changes: who found them, or why nobody does. The share is of the first three."""


def _column(trial: Trial) -> str:
    if trial.is_found:
        return TESTS if trial.outcome is Outcome.TESTED else SCHEDULES
    if explanation_of(trial.site, SOURCES) is not None:
        return EXPLAINED
    return MISSED if trial.outcome is Outcome.MISSED else NOT_REACHED


def _name(site: Site) -> str:
    return str(site.path.relative_to(SOURCES))


def _room(site: Site) -> str:
    return str(site.path.relative_to(SOURCES).parent)


if __name__ == "__main__":
    command(prog_name="python -m tests.testkit.mutants.command")
