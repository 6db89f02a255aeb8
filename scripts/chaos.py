"""Chaos: a job on real processes under random kills, hangs, freezes, notices, drains and joins, and then its bits.

`make chaos` runs it on a job like the demo's; SECONDS=60 and SEED=7 as variables of make. The schedule (which fault,
what it strikes, how many steps later) comes from the seed; which instruction a signal meets is up to the machine. Exit
status 0 when the losses of all steps and the final weights are those of one process alone.
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import json
import os
import queue
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

import planaria
from planaria.cli import live
from planaria.job.errors import UserError
from planaria.job.faults import FAULT_POINTS, Fault, FaultKind
from planaria.observe.run_folder import RunFolder
from planaria.protocol.records import (
    AnyRecord,
    CheckpointSaved,
    NodeJoined,
    NodeLost,
    NodeReleased,
    Recovered,
    RunEnded,
    StepCommitted,
    Waiting,
)

ROOT = Path(__file__).parents[1]
PATIENCE_S = 120.0
"""So long may a run take to the next record before it counts as hung, which is a failure."""


class Blow(enum.StrEnum):
    """What befalls a run, beside the faults that are ordered at an instruction before it starts."""

    KILL = "kill"
    """SIGKILL to every process of a node."""
    STOP = "stop"
    """SIGSTOP: the node lives and does nothing."""
    PAUSE = "pause"
    """SIGSTOP, and SIGCONT after the next step: it comes back when it is fenced, or was never missed."""
    BURST = "burst"
    """SIGKILL to two nodes at once."""
    NOTICE = "notice"
    """SIGTERM, as of a machine that will be taken away."""
    DRAIN = "drain"
    """The user asks for it."""
    JOIN = "join"
    """A node more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chance:
    """One entry of the schedule.

    Attributes:
        steps: committed steps to wait for before it.
        delay_s: and then so long, so that it falls anywhere within a step.
        blow: what happens.
        share: which of the nodes that live then: from 0 to 1 in the order of their numbers.
    """

    steps: int
    delay_s: float
    blow: Blow
    share: float


def chances(seed: int, step_s: float) -> Iterator[Chance]:
    """The endless schedule of a seed."""
    draw = random.Random(seed)
    weights = {Blow.KILL: 5, Blow.STOP: 1, Blow.PAUSE: 1, Blow.BURST: 1, Blow.NOTICE: 2, Blow.DRAIN: 1, Blow.JOIN: 2}
    while True:
        (blow,) = draw.choices(list(weights), list(weights.values()))
        yield Chance(
            steps=draw.choice([0, 0, 1, 2, 3]), delay_s=draw.uniform(0, step_s), blow=blow, share=draw.random()
        )


def ordered_faults(seed: int, nodes: int, first_step: int, last_step: int) -> tuple[Fault, ...]:
    """Faults at instructions, for half of the nodes that the job starts with."""
    draw = random.Random(f"faults of {seed}")
    victims = draw.sample(range(nodes), nodes // 2)
    return tuple(
        Fault(
            node=node,
            step=draw.randint(first_step, last_step),
            at=draw.choice(FAULT_POINTS),
            kind=(kind := draw.choice([of_nodes for of_nodes in FaultKind if of_nodes is not FaultKind.COORDINATOR])),
            grace_s=1.0 if kind is FaultKind.NOTICE else 0.0,
        )
        for node in victims
    )


@dataclass(slots=True)
class Told:
    """What a run told, and what was done to it."""

    blows: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    joined: int = 0
    released: int = 0
    waited: int = 0
    recovered: int = 0
    log: list[str] = field(default_factory=list)


class Chaos:
    """Does its worst to a run, in a thread of its own, until its time is over. Register it as the run's observer.

    Args:
        folder: of the run.
        seed: of the schedule.
        seconds: for which it goes on.
        keep_nodes: with fewer live nodes than that, the next thing is a join.
        most_nodes: with as many, no more join.
        step_s: delays are up to so long.
    """

    def __init__(
        self, folder: Path, *, seed: int, seconds: float, keep_nodes: int, most_nodes: int, step_s: float = 0.1
    ) -> None:
        self.told = Told()
        self.error: BaseException | None = None
        self._folder = folder
        self._chances = chances(seed, step_s)
        self._seconds = seconds
        self._keep, self._most = keep_nodes, most_nodes
        self._records: queue.Queue[AnyRecord] = queue.Queue()
        self._live: set[int] = set()
        self._is_over = False
        self._is_waiting = False
        self._has_checkpoint = False
        self._thread = threading.Thread(target=self._run, name="chaos", daemon=True)

    def __call__(self, record: AnyRecord, time_s: float) -> None:
        self._records.put(record)
        if self._thread.ident is None:
            self._thread.start()

    def join(self) -> None:
        """Wait for the end. Raises what went wrong."""
        self._thread.join(PATIENCE_S)
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            self._wait(lambda: self._has_checkpoint)  # before, all replicas of a layer lost is the end
            ends = time.monotonic() + self._seconds
            while not self._is_over and time.monotonic() < ends:
                self._next()
            self._see_it_out()
        except BaseException as error:
            self.error = error
            with contextlib.suppress(UserError):
                live.stop(self._folder)

    def _next(self) -> None:
        chance = next(self._chances)
        self._wait_for_steps(chance.steps)
        self._take_records(chance.delay_s)
        if self._is_over or not self._live:
            return
        blow = chance.blow
        if len(self._live) < self._keep:
            blow = Blow.JOIN
        elif blow is Blow.JOIN and len(self._live) >= self._most:
            blow = Blow.KILL
        with contextlib.suppress(UserError):  # whoever is meant, or the run, may be gone by now
            self._strike(blow, chance.share)

    def _strike(self, blow: Blow, share: float) -> None:
        nodes = sorted(self._live)
        victim = nodes[int(share * len(nodes))] if nodes else -1
        match blow:
            case Blow.JOIN:
                before = self.told.joined
                live.add(self._folder, 1)
                self._wait(lambda: self.told.joined > before)
            case Blow.DRAIN:
                live.drain(self._folder, victim, 30.0)
            case Blow.KILL | Blow.STOP | Blow.NOTICE:
                number = {Blow.KILL: signal.SIGKILL, Blow.STOP: signal.SIGSTOP, Blow.NOTICE: signal.SIGTERM}[blow]
                self._signal(victim, number)
            case Blow.BURST:
                for node in {victim, nodes[int(share * len(nodes)) - 1]}:
                    self._signal(node, signal.SIGKILL)
            case Blow.PAUSE:
                if self._signal(victim, signal.SIGSTOP):
                    self._wait_for_steps(1)
                    self._signal(victim, signal.SIGCONT)
        self.told.blows[blow.value] += 1
        self.told.log.append(f"{blow.value} {victim}")

    def _signal(self, node: int, number: signal.Signals) -> bool:
        """To the processes of a node; whether there were any."""
        pids = workers_of(self._folder, node)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return bool(pids)

    def _see_it_out(self) -> None:
        """No more blows: the rest of the job, with nodes when there are too few."""
        while not self._is_over:
            self._wait_for_steps(1)

    # What the run tells

    def _wait_for_steps(self, steps: int) -> None:
        """Until so many more are committed; nodes are added when there are too few to go on."""
        committed = 0
        while committed < steps and not self._is_over:
            if self._is_waiting and len(self._live) < self._keep:
                with contextlib.suppress(UserError):
                    self._strike(Blow.JOIN, 0.0)
                continue
            committed += isinstance(self._take_record(PATIENCE_S), StepCommitted)

    def _wait(self, condition: Callable[[], bool]) -> None:
        ends = time.monotonic() + PATIENCE_S
        while not condition() and not self._is_over:
            self._take_record(max(0.0, ends - time.monotonic()))

    def _take_records(self, seconds: float) -> None:
        """Those of some time."""
        ends = time.monotonic() + seconds
        while not self._is_over and (left := ends - time.monotonic()) > 0:
            try:
                self._note(self._records.get(timeout=left))
            except queue.Empty:
                return

    def _take_record(self, timeout_s: float) -> AnyRecord:
        try:
            record = self._records.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError(f"nothing happened for {timeout_s:.0f} s after {self.told.log[-5:]}") from None
        self._note(record)
        return record

    def _note(self, record: AnyRecord) -> None:
        match record:
            case NodeJoined():
                self._live.add(record.node)
                self.told.joined += 1
            case NodeLost():
                self._live.discard(record.node)
                self.told.lost[record.cause.split(" for ")[0].partition(" from ")[0]] += 1
            case NodeReleased():
                self._live.discard(record.node)
                self.told.released += 1
            case Waiting():
                self.told.waited += 1
                self._is_waiting = True
            case StepCommitted():
                self._is_waiting = False
            case CheckpointSaved():
                self._has_checkpoint = True
            case Recovered():
                self.told.recovered += 1
            case RunEnded():
                self._is_over = True
            case _:
                pass


def workers_of(folder: Path, node: int) -> list[int]:
    """Pids of a node's workers of this run (one device a node): those that write its log."""
    log = str((RunFolder(folder).logs / f"worker-{node}.log").resolve())
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                if os.readlink(process / "fd" / "1") == log:
                    found.append(int(process.name))
    return found


def losses(folder: Path) -> dict[int, float]:
    """By step; the text of a loss gives back its very bits."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return {entry["step"]: entry["loss"] for entry in map(json.loads, lines)}


def chaos_job(steps: int) -> planaria.Job:
    """The demo's, that waits when nodes run low."""
    job = planaria.load_job(ROOT / "examples" / "demo.toml")
    train = msgspec.structs.replace(job.train, steps=steps, global_batch=24)
    model = msgspec.structs.replace(job.model, config={"n_layer": 6, "n_embd": 64, "n_head": 4, "n_positions": 64})
    resilience = msgspec.structs.replace(job.resilience, when_exhausted="wait")
    run = msgspec.structs.replace(job.run, checkpoint_every=10)
    return msgspec.structs.replace(job, model=model, train=train, resilience=resilience, run=run)


def main() -> int:
    """Trains under blows, trains alone, and compares."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=300.0, help="of blows (default: 300)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=0, help="of the job (default: two a second)")
    given = parser.parse_args()
    console = Console(highlight=False)
    steps = given.steps or max(40, round(2 * given.seconds))
    job = chaos_job(steps)
    name = time.strftime("chaos-%Y%m%d-%H%M%S")
    folder = Path(job.run.folder) / name
    chaos = Chaos(folder, seed=given.seed, seconds=given.seconds, keep_nodes=5, most_nodes=9)
    faults = ordered_faults(given.seed, job.cluster.nodes, 20, max(20, steps // 4))
    began = time.monotonic()
    trained = planaria.train(job, name=name, faults=faults, observers=[chaos], progress=True)
    chaos.join()
    took_s = time.monotonic() - began
    if trained.status.value != "completed":
        console.print(f"[bold red]{trained.status.value}[/]: {trained.message}\nrun folder: {folder}")
        return 1
    alone = planaria.reference(job, name=f"{name}-reference", progress=True)
    same = losses(trained.folder) == losses(alone.folder) and trained.weights_sha256 == alone.weights_sha256
    tell(console, chaos.told, faults)
    summary = json.loads((trained.folder / "summary.json").read_text())
    console.print(
        f"{trained.steps} steps in {took_s:.0f} s, seed {given.seed}; microbatches skipped: "
        f"{summary['skipped_microbatches']}, counted twice: {summary['duplicated_microbatches']}"
    )
    console.print(f"bit-identical: {'[bold green]yes' if same else '[bold red]NO'}[/]\nrun folder: {folder}")
    return 0 if same else 1


def tell(console: Console, told: Told, faults: tuple[Fault, ...]) -> None:
    """A line for each kind of fault."""
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("what was done")
    table.add_column("times", justify="right")
    for kind, count in sorted(Counter(f"{fault.kind.value}, at an instruction" for fault in faults).items()):
        table.add_row(kind, str(count))
    for kind, count in sorted(told.blows.items()):
        table.add_row(kind, str(count))
    console.print(table)
    causes = ", ".join(f"{count} {cause}" for cause, count in sorted(told.lost.items()))
    console.print(
        f"nodes lost: {sum(told.lost.values())} ({causes}); released: {told.released}; joined: {told.joined}; "
        f"recoveries: {told.recovered}; waited for nodes: {told.waited} times"
    )


if __name__ == "__main__":
    sys.exit(main())
