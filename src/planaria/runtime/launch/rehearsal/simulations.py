"""Runs simulations on several cores: deals out pieces of work to processes, keeps results and finds them again.

What is simulated is `planaria.simulate`'s matter; a result depends on its piece alone, not on who computed it.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from functools import cache, lru_cache, partial
from pathlib import Path
from signal import Signals

import msgspec

from planaria.job.errors import UserError
from planaria.job.version import __version__
from planaria.plan.plan import PlanError
from planaria.profile.of_scenario import profile_of, traces_of
from planaria.runtime.machine.interrupts import deaf
from planaria.runtime.run_folder.recorder import write_atomically
from planaria.runtime.thresholds import OBJECTS_BETWEEN_COLLECTIONS
from planaria.simulate.results import RunResult
from planaria.simulate.scenario import Scenario, experiment
from planaria.simulate.sweep import Piece

SIMULATING = ("estimate", "job", "plan", "planner", "policy", "profile", "protocol", "simulate")
"""Packages whose code decides what a simulation results in."""


class KeptResults(msgspec.Struct, frozen=True, kw_only=True):
    """The kept results of a piece of work.

    Attributes:
        fingerprint: the fingerprint of the piece of work.
        runs: one for each seed.
        simulator: that they are by, see `simulator`; empty in files older than that.
    """

    fingerprint: str
    runs: list[RunResult]
    simulator: str = ""


@cache
def simulator() -> str:
    """Identifies the code that simulates: version, and a hash of its source. Other code may give other results."""
    found = hashlib.sha256()
    root = Path(__file__).parents[3]
    for path in sorted(path for package in SIMULATING for path in (root / package).rglob("*.py")):
        found.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return f"{__version__}-{found.hexdigest()[:16]}"


def simulate_piece(piece: Piece, folder: Path) -> list[RunResult]:
    """Simulates a piece's runs, one after the other.

    Args:
        piece: the piece of work.
        folder: from which the scenario's paths lead.

    Raises:
        UserError: a file of the scenario cannot be used.
        PlanError: the model does not fit.
    """
    scenario = piece.scenario
    failures = msgspec.structs.replace(scenario.failures, seed=piece.first_seed, runs=piece.runs)
    traces = traces_of(msgspec.structs.replace(scenario, failures=failures), folder)
    about = experiment(scenario, profile_of(scenario, folder), wants_timeline=piece.wants_timeline)
    with seldom_collected():
        return about.run(piece.policy, traces)


@contextlib.contextmanager
def seldom_collected() -> Iterator[None]:
    """Collects garbage seldom within the block: only when there may be much of it."""
    before = gc.get_threshold()
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def simulate_pieces(
    pieces: Sequence[Piece],
    folder: Path,
    *,
    processes: int,
    results: Path | None = None,
    progress: Callable[[Piece], None] = lambda piece: None,
    told: Callable[[str], None] = lambda text: None,
    unplanned: Callable[[Piece, PlanError], None] | None = None,
) -> list[list[RunResult]]:
    """Simulates all pieces; returns the runs of each, in the pieces' order.

    Args:
        pieces: the pieces of work.
        folder: from which the scenarios' paths lead.
        processes: that compute at a time; 1: this one.
        results: folder in which results are kept, and looked for first.
        progress: called when a piece is done.
        told: called with what is worth knowing, one sentence each.
        unplanned: called with a piece for which there is no plan, which has no runs; None: that is an error.

    Raises:
        UserError: a file cannot be used, or the results' folder cannot be written.
        PlanError: a model does not fit.
    """
    prints = [piece.fingerprint(_inputs(piece.scenario, folder)) for piece in pieces]
    found: dict[int, list[RunResult]] = {}
    if results is not None:
        found = _look(pieces, prints, results, told)
        for at in found:
            progress(pieces[at])

    def done(at: int, result: Callable[[], list[RunResult]]) -> None:
        try:
            runs = result()
        except PlanError as error:
            if unplanned is None:
                raise
            unplanned(pieces[at], error)
            runs = []
        if results is not None and runs:
            _keep(
                results / f"{pieces[at].name}.json",
                KeptResults(fingerprint=prints[at], runs=runs, simulator=simulator()),
            )
        found[at] = runs
        progress(pieces[at])

    todo = [at for at in range(len(pieces)) if at not in found]
    try:
        if processes == 1 or len(todo) <= 1:
            for at in todo:
                done(at, partial(simulate_piece, pieces[at], folder))
        else:
            _in_processes(pieces, todo, folder, processes, done)
    except KeyboardInterrupt:
        if results is not None:
            told(f"{len(found)} of {len(pieces)} results are in {results}; the same command goes on from there")
        raise
    return [found[at] for at in range(len(pieces))]


def _in_processes(
    pieces: Sequence[Piece],
    todo: Sequence[int],
    folder: Path,
    processes: int,
    done: Callable[[int, Callable[[], list[RunResult]]], None],
) -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(processes, len(todo)), mp_context=context) as pool:
        try:
            with deaf({Signals.SIGINT}):
                waiting: dict[Future[list[RunResult]], int] = {
                    pool.submit(simulate_piece, pieces[at], folder): at for at in todo
                }
            for future in as_completed(waiting):
                done(waiting[future], future.result)
        except BaseException:
            for child in multiprocessing.active_children():
                child.terminate()
            raise  # the pool, which is broken now, is waited for: a thread of it would else race with the exit


def _inputs(scenario: Scenario, folder: Path) -> bytes:
    return b"".join(_contents(folder / name) for name in (scenario.model.profile, scenario.failures.trace) if name)


@lru_cache(maxsize=8)
def _contents(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # whoever uses it says what is wrong with it


def _look(
    pieces: Sequence[Piece], prints: Sequence[str], results: Path, told: Callable[[str], None]
) -> dict[int, list[RunResult]]:
    """Returns the pieces whose results are kept already; others of the same name are of a scenario or a simulator that
    was changed since."""
    found: dict[int, list[RunResult]] = {}
    num_changed = num_others = 0
    for at, (piece, fingerprint) in enumerate(zip(pieces, prints, strict=True)):
        path = results / f"{piece.name}.json"
        if not path.exists():
            continue
        try:
            kept = msgspec.json.decode(path.read_bytes(), type=KeptResults)
        except (OSError, msgspec.DecodeError):
            told(f"{path} is damaged; it is simulated again")
            continue
        if kept.fingerprint != fingerprint:
            num_changed += 1
        elif kept.simulator != simulator():
            num_others += 1
        else:
            found[at] = kept.runs
    if found:
        told(f"{len(found)} of {len(pieces)} results were there already, in {results}")
    if num_others:
        told(f"{num_others} results in {results} are by another version of planaria; they are simulated again")
    if num_changed:
        told(f"{num_changed} results in {results} are of another scenario or another file; they are simulated again")
    return found


def _keep(path: Path, kept: KeptResults) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, msgspec.json.encode(kept))
    except OSError as error:
        raise UserError(f"results cannot be written to {path}: {error.strerror}. Give another --results.") from None
