"""Random schedules of faults against the protocol, in virtual time: `python -m tests.testkit.dst`.

It tries seeds on all cores, shows how far it is, keeps the smallest schedule that it finds for each failure as a file,
and runs one again with its whole history.
"""

from __future__ import annotations

import gc
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from planaria.runtime.thresholds import OBJECTS_BETWEEN_COLLECTIONS
from tests.testkit.cluster.cluster import Cluster
from tests.testkit.promises.marks import MARKS, watch
from tests.testkit.schedules.schedule import Schedule, schedule
from tests.testkit.schedules.search import Failure, try_seed

BATCH = 50
"""Schedules that one process tries between two reports."""


RAREST = 5
"""Marks that are told of those that were reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """Schedules that were tried.

    Attributes:
        number: of them.
        failures: those that broke a promise.
        marks: by how many each was reached.
    """

    number: int
    failures: list[Failure]
    marks: Counter[str]


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--seeds", type=click.IntRange(1), default=1000, show_default=True, help="How many schedules to try.")
@click.option("--first-seed", type=click.IntRange(0), default=0, show_default=True, help="Of them, the first.")
@click.option("--jobs", type=click.IntRange(1), default=None, help="Processes.  [default: one a core]")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("dst-failures"),
    show_default=True,
    help="Where schedules that failed are kept.",
)
@click.option("--replay", metavar="SEED|FILE", help="Run one schedule again, and print its history.")
def dst(seeds: int, first_seed: int, jobs: int | None, folder: Path, replay: str | None) -> None:
    """Deterministic simulation: try random schedules of kills, hangs, partitions, joins, notices and full disks against
    the real protocol, in virtual time. Every promise is checked after every event; one seed gives one history.

    Exit code 0 when every schedule kept every promise, 1 when one did not.
    """
    if replay is not None:
        sys.exit(_replay(_schedule(replay)))
    sys.exit(_search(range(first_seed, first_seed + seeds), jobs or os.cpu_count() or 1, folder))


def _schedule(what: str) -> Schedule:
    """Returns the schedule of a seed, or from a file."""
    if what.isdigit():
        return schedule(int(what))
    try:
        return msgspec.json.decode(Path(what).read_bytes(), type=Schedule)
    except FileNotFoundError:
        raise click.BadParameter(f"{what} is neither a seed nor a file.", param_hint="--replay") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{what} is no schedule: {error}", param_hint="--replay") from None


def _replay(which: Schedule) -> int:
    click.echo(f"{which.setup}\n{which.weather}\n{which.calm}")
    for fault in which.faults:
        click.echo(str(fault))
    cluster = Cluster(which, is_telling=True)
    try:
        finish = cluster.run()
    except Exception as error:
        click.echo("\n".join(cluster.history))
        click.echo(cluster.describe())
        click.echo("".join(traceback.format_exception(error)), nl=False)
        return 1
    click.echo("\n".join(cluster.history))
    click.echo(f"{finish.status.value}: every promise was kept")
    return 0


@cache
def _watched() -> set[str]:
    """Returns the set of the marks that are reached in this process, from the first call on. What is there by then
    stays: no collection of garbage looks at it."""
    reached = watch()
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS, *gc.get_threshold()[1:])
    gc.collect()
    gc.freeze()
    return reached


def try_seeds(seeds: range) -> Tried:
    """Tries these seeds; runs in a process of its own."""
    failures, marks, reached = [], Counter[str](), _watched()
    for seed in seeds:
        reached.clear()
        failure = try_seed(seed)
        marks.update(reached)
        failures += [] if failure is None else [failure]
    return Tried(number=len(seeds), failures=failures, marks=marks)


def _search(seeds: range, jobs: int, folder: Path) -> int:
    began, failed, marks = time.monotonic(), 0, Counter[str]()
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[failed]} failed"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("schedules", total=len(seeds), failed=0)
        for tried in _results(seeds, jobs):
            marks.update(tried.marks)
            for failure in tried.failures:
                failed += 1
                progress.console.print(_keep(failure, folder), highlight=False, markup=False, soft_wrap=True)
            progress.update(task, advance=tried.number, failed=failed)
    took_s = time.monotonic() - began
    click.echo(
        f"{len(seeds)} schedules from seed {seeds.start} on: {failed} failed; "
        f"{took_s:.1f} s, {len(seeds) / took_s:.0f} a second"
    )
    click.echo("\n".join(_told(marks)))
    return 1 if failed else 0


def _told(marks: Counter[str]) -> list[str]:
    """Returns lines on the marks that fewest schedules reached, and on those that none did, with their reasons."""
    never = [mark for mark in MARKS if not marks[mark.name]]
    rarest = ", ".join(f"{name} ({number})" for name, number in marks.most_common()[: -RAREST - 1 : -1])
    lines = [f"{len(MARKS) - len(never)} of {len(MARKS)} rare branches were reached; fewest: {rarest}"]
    return lines + [f"never reached: {mark.name} ({mark.why})" for mark in never]


def _results(seeds: range, jobs: int) -> Iterator[Tried]:
    """Yields what was tried, a batch each."""
    batches = iter([seeds[at : at + BATCH] for at in range(0, len(seeds), BATCH)])
    running: set[Future[Tried]] = set()
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        while True:
            while len(running) < jobs and (batch := next(batches, None)) is not None:
                running.add(pool.submit(try_seeds, batch))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)


def _keep(failure: Failure, folder: Path) -> str:
    """Writes the failure's schedule; returns how to run it again."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{failure.seed}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(failure.smallest)) + b"\n")
    return (
        f"FAILED seed {failure.seed}: {failure.error}\n"
        f"  again: python -m tests.testkit.dst --replay {failure.seed}\n"
        f"  made smaller: python -m tests.testkit.dst --replay {path}"
    )


if __name__ == "__main__":
    dst(prog_name="python -m tests.testkit.dst")
