"""Deterministic simulation, as long as you like: random schedules of whole jobs in virtual time, one from each seed.

    python -m tests.runtime.worker.dst --seeds 100000 --first-seed 10000      prints the seed of any failure
    python -m tests.runtime.worker.dst --replay losses:1234                   runs one again, and prints its history
    python -m tests.runtime.worker.dst --replay tests/runtime/worker/corpus/X.json    likewise

A failure is made smaller (faults that it does not need are left out), and written as a case of the corpus, which
`tests/runtime/worker/test_cluster.py` tries from then on. Exit status 0 when every schedule kept every promise.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import torch

from tests.runtime.worker.cluster import Outcome
from tests.runtime.worker.schedules import (
    Case,
    Schedule,
    all_holders_die,
    any_policy,
    comings_and_goings,
    power_losses,
    restarts,
    schedule,
    shortages,
    switching,
)
from tests.runtime.worker.test_cluster import Laboratory

BATCH = 20
"""Schedules that one process tries between two reports."""

Make = Callable[[int, Laboratory], Schedule]

KINDS: dict[str, Make] = {
    "losses": lambda seed, laboratory: schedule(seed, str(laboratory.source)),
    "visits": lambda seed, laboratory: comings_and_goings(seed, str(laboratory.source)),
    "restarts": lambda seed, laboratory: restarts(seed, str(laboratory.source)),
    "power": lambda seed, laboratory: power_losses(seed, str(laboratory.source)),
    "policies": lambda seed, laboratory: any_policy(seed, str(laboratory.source)),
    "switches": lambda seed, laboratory: switching(seed, str(laboratory.source)),
    "shortages": lambda seed, laboratory: shortages(seed, str(laboratory.source)),
    "holders": lambda seed, laboratory: all_holders_die(seed, str(laboratory.source), laboratory.holders),
}
"""losses: nodes die. visits: they come and give notice too, and jobs wait. restarts: the coordinator
dies as well. power: and its journal loses its end. policies: losses or visits under other policies than templates.
switches: the user changes the policy on the way. shortages: nodes run out of memory. holders: all that hold one layer
die."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A broken promise.

    Attributes:
        name: kind and seed.
        error: its first line.
        trace: the traceback, with the end of the history.
        case: the smallest schedule found that fails in the same way.
    """

    name: str
    error: str
    trace: str
    case: bytes


@contextmanager
def laboratory() -> Iterator[Laboratory]:
    """A place to run schedules in, gone afterwards. Nothing is kept safe against a power loss."""
    torch.set_num_threads(1)
    fsync, os.fsync = os.fsync, lambda descriptor: None
    try:
        with tempfile.TemporaryDirectory(prefix="planaria-dst-") as folder:
            yield Laboratory(Path(folder))
    finally:
        os.fsync = fsync


def error_of(which: Schedule, place: Laboratory) -> BaseException | None:
    """What a schedule's run raised."""
    try:
        place.run(which)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return error
    finally:
        gc.collect()  # clusters are cycles, and hold memory files
    return None


def first_line(error: BaseException) -> str:
    text = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {text}"[:300]


def smaller(which: Schedule, place: Laboratory, error: BaseException) -> Schedule:
    """The schedule without the faults that an error of the same type does not need."""

    def fails(candidate: Schedule) -> bool:
        return type(error_of(candidate, place)) is type(error)

    if which.stop_at_s is not None and fails(candidate := replace(which, stop_at_s=None)):
        which = candidate
    for kill in which.kills:
        candidate = replace(which, kills=tuple(other for other in which.kills if other is not kill))
        which = candidate if fails(candidate) else which
    for visit in which.visits:
        candidate = replace(which, visits=tuple(other for other in which.visits if other is not visit))
        which = candidate if fails(candidate) else which
    for crash in which.crashes:
        candidate = replace(which, crashes=tuple(other for other in which.crashes if other is not crash))
        which = candidate if fails(candidate) else which
    for switch in which.switches:
        candidate = replace(which, switches=tuple(other for other in which.switches if other is not switch))
        which = candidate if fails(candidate) else which
    return which


def try_batch(kind: str, seeds: Sequence[int]) -> list[Failure]:
    """Run the schedules of some seeds."""
    failures = []
    with laboratory() as place:
        gc.collect()
        gc.freeze()  # what is there stays, and is not looked at after each schedule
        for seed in seeds:
            which = KINDS[kind](seed, place)
            error = error_of(which, place)
            if error is None:
                continue
            case = Case(why=first_line(error), schedule=smaller(which, place, error))
            failures.append(
                Failure(
                    name=f"{kind}:{seed}",
                    error=first_line(error),
                    trace="".join(traceback.format_exception(error)),
                    case=msgspec.json.format(msgspec.json.encode(case)),
                )
            )
    return failures


def batches(kinds: Sequence[str], seeds: range) -> Iterator[tuple[str, range]]:
    for at in range(0, len(seeds), BATCH):
        for kind in kinds:
            yield kind, seeds[at : at + BATCH]


def search(kinds: Sequence[str], seeds: range, *, processes: int, limit_s: float | None, corpus: Path) -> int:
    """Try all seeds of all kinds, in several processes; returns how many failed."""
    began, tried, failed = time.monotonic(), 0, 0
    todo = batches(kinds, seeds)
    context = multiprocessing.get_context("spawn")
    running: dict[Future[list[Failure]], int] = {}
    with ProcessPoolExecutor(processes, mp_context=context, max_tasks_per_child=20) as pool:
        while True:
            is_late = limit_s is not None and time.monotonic() - began > limit_s
            while not is_late and len(running) < processes and (batch := next(todo, None)) is not None:
                running[pool.submit(try_batch, *batch)] = len(batch[1])
            if not running:
                break
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                tried += running.pop(future)
                failed += sum(_tell(failure, corpus) for failure in future.result())
            took = time.monotonic() - began
            print(f"\r{tried} schedules, {failed} failed, {took:.0f} s", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(f"{tried} schedules, {failed} failed, in {time.monotonic() - began:.0f} s")
    return failed


def _tell(failure: Failure, corpus: Path) -> int:
    path = corpus / f"{failure.name.replace(':', '-')}.json"
    corpus.mkdir(parents=True, exist_ok=True)
    path.write_bytes(failure.case)
    print(f"\nFAILED {failure.name}: {failure.error}\n  kept in {path}", flush=True)
    print(f"  again, with its history: python -m tests.runtime.worker.dst --replay {failure.name}", flush=True)
    return 1


def replay(what: str) -> int:
    """Run the schedule of "kind:seed" or of a corpus file again and print its history; returns the exit status."""
    with laboratory() as place:
        kind, colon, seed = what.partition(":")
        if colon and kind in KINDS and seed.isdigit():
            which = KINDS[kind](int(seed), place)
        else:
            which = msgspec.json.decode(Path(what).read_bytes(), type=Case).schedule_with(str(place.source))
        for fault in (*which.kills, *which.visits, *which.crashes, *which.switches):
            print(fault)
        cluster = place.cluster(which)
        outcome: Outcome | None = None
        try:
            outcome = cluster.run()
        except BaseException as error:
            print("\n".join(cluster.history))
            error.__notes__ = []  # the history, which stands above
            traceback.print_exception(error)
            return 1
        print("\n".join(outcome.history))
        # Once more, with the promises and the end of what was interrupted.
        error = error_of(which, place)
        if error is not None:
            traceback.print_exception(error)
            return 1
        print(f"{outcome.finish.status.value}: every promise was kept")
        return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.runtime.worker.dst", description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=1000, help="how many, of each kind (default: 1000)")
    parser.add_argument("--first-seed", type=int, default=10_000)
    parser.add_argument("--kind", choices=KINDS, action="append", help="default: all")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit-s", type=float, help="begin no others after so many seconds")
    parser.add_argument("--corpus", type=Path, default=Path(__file__).with_name("corpus"))
    parser.add_argument("--replay", metavar="KIND:SEED|FILE")
    given = parser.parse_args(arguments)
    if given.replay is not None:
        return replay(given.replay)
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    kinds = given.kind or list(KINDS)
    failed = search(kinds, seeds, processes=given.processes, limit_s=given.limit_s, corpus=given.corpus)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
