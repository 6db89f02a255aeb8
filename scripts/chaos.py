"""Chaos: jobs on real processes under random kills, hangs, slowdowns, notices, drains, joins and switches of policy.

`make chaos` runs it on a job like the demo's; SECONDS=60 and SEED=7 as variables of make. With `--faults 1000` it runs
many short jobs, each with a schedule of its own, until so many faults were injected. The schedule (which fault, what it
strikes, how many steps later) comes from the seed; which instruction a signal meets is up to the machine. Each short
job draws its policy, the mode of redundancy, zones, and whether samples may be dropped. Exit status 0 when the losses
of all steps and the final weights are those of one process alone, which leaves out the samples that the run left out,
the witness (tests/testkit/witness) finds nothing wrong in what the run wrote, and of one long run, what its processes
take of the machine (scripts/footprint.py) has not grown.
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import json
import math
import os
import queue
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table
from scripts.footprint import Footprint, grown
from scripts.footprint import told as told_of
from tests.testkit.witness.run_folder import judge_folder

import planaria
from planaria.job.errors import UserError
from planaria.job.faults import FAULT_POINTS, Fault, parse_fault
from planaria.job.parse import job_json
from planaria.job.registry import PolicyName
from planaria.job.sections.resilience import WhenExhausted
from planaria.plan.plan import Redundancy
from planaria.protocol.messages.records import (
    AnyRecord,
    CheckpointSaved,
    NodeJoined,
    NodeLeaving,
    NodeLost,
    NodeReleased,
    PolicySwitched,
    Recovered,
    Restored,
    RunEnded,
    StepCommitted,
    Waiting,
)
from planaria.runtime.launch.reference import train_reference
from planaria.runtime.launch.session import train_job
from planaria.runtime.launch.training.request import TrainRequest
from planaria.runtime.nodes.local_nodes import LocalNodes
from planaria.runtime.run_folder.recorder import read_drops
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.ui.cli import live

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
    SLOW = "slow"
    """Stopped half of the time, a few milliseconds at once, for some steps."""
    COORDINATOR = "coordinator"
    """SIGKILL to the coordinator's process."""
    NOTICE = "notice"
    """SIGTERM, as of a machine that will be taken away."""
    DRAIN = "drain"
    """The user asks for it."""
    JOIN = "join"
    """A node more."""
    SWITCH = "switch"
    """The user wants another policy."""


WEIGHTS = {
    Blow.KILL: 6,
    Blow.STOP: 1,
    Blow.PAUSE: 2,
    Blow.BURST: 1,
    Blow.SLOW: 1,
    Blow.COORDINATOR: 2,
    Blow.NOTICE: 2,
    Blow.DRAIN: 1,
    Blow.JOIN: 2,
    Blow.SWITCH: 3,
}
FAULTS = frozenset(Blow) - {Blow.DRAIN, Blow.JOIN, Blow.SWITCH}
"""The others are a user's wishes."""

SLOW_STEPS = 3
SLOW_S = 0.005
"""So long it is stopped and goes on, in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chance:
    """One entry of the schedule.

    Attributes:
        steps: committed steps to wait for before it.
        delay_s: and then so long, so that it falls anywhere within a step.
        blow: what happens.
        share: which of the nodes that live then: from 0 to 1 in the order of their numbers; or which policy.
    """

    steps: int
    delay_s: float
    blow: Blow
    share: float


def chances(seed: int, step_s: float) -> Iterator[Chance]:
    """The endless schedule of a seed."""
    draw = random.Random(seed)
    while True:
        (blow,) = draw.choices(list(WEIGHTS), list(WEIGHTS.values()))
        yield Chance(
            steps=draw.choice([0, 0, 1, 2, 3]), delay_s=draw.uniform(0, step_s), blow=blow, share=draw.random()
        )


Writer = Callable[[random.Random, int, int], str]

POINTS = tuple(point for point in FAULT_POINTS if point != "weight")
"""Instructions that the job's schedule has."""

ORDERED: Mapping[str, tuple[int, Writer]] = {
    "kill": (6, lambda draw, node, step: f"kill:node={node},step={step},at={draw.choice(POINTS)}"),
    "hang": (1, lambda draw, node, step: f"hang:node={node},step={step},at={draw.choice(POINTS)}"),
    "freeze": (1, lambda draw, node, step: f"freeze:node={node},step={step},at={draw.choice(POINTS)}"),
    "notice": (2, lambda draw, node, step: f"notice:node={node},step={step},at={draw.choice(POINTS)},grace=1"),
    # What becomes wrong at rest is found even where other faults leave one replica.
    "corrupt": (1, lambda draw, node, step: f"corrupt:node={node},step={step},at=rest,bits={draw.choice([1, 1, 8])}"),
    "slow": (
        2,
        lambda draw, node, step: f"slow:node={node},step={step},factor={draw.choice([2, 5])},until={step + 20}",
    ),
}
"""Kinds of faults at instructions: how often one is chosen, and how it is written for `--fail`."""


def ordered_faults(seed: int, nodes: int, first_step: int, last_step: int) -> tuple[Fault, ...]:
    """Faults at instructions, for half of the nodes that the job starts with."""
    draw = random.Random(f"faults of {seed}")
    victims = draw.sample(range(nodes), nodes // 2)
    kinds = draw.choices(list(ORDERED), [weight for weight, _ in ORDERED.values()], k=len(victims))
    return tuple(
        parse_fault(ORDERED[kind][1](draw, node, draw.randint(first_step, last_step)))
        for node, kind in zip(victims, kinds, strict=True)
    )


@dataclass(slots=True)
class Told:
    """What a run told, and what was done to it.

    Attributes:
        blows: by kind.
        struck: nodes that struck themselves on order and were lost by it, or gave notice.
        lost: by cause.
        restored: steps that were trained again, because all replicas of a layer were lost.
    """

    blows: Counter[str] = field(default_factory=Counter)
    struck: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    switched: int = 0
    joined: int = 0
    released: int = 0
    waited: int = 0
    recovered: int = 0
    restored: int = 0
    committed: int = 0
    log: list[str] = field(default_factory=list)

    @property
    def faults(self) -> int:
        """How many were really injected."""
        return self.struck + sum(self.blows[blow.value] for blow in FAULTS) + self.blows[Blow.BURST.value]

    def add(self, other: Told) -> None:
        self.blows += other.blows
        self.lost += other.lost
        for name in ("struck", "switched", "joined", "released", "waited", "recovered", "restored", "committed"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Chaos:
    """Does its worst to a run, in a thread of its own, until its time is over. Register it as the run's observer.

    Args:
        folder: of the run.
        seed: of the schedule.
        seconds: for which it goes on.
        keep_nodes: with fewer live nodes than that, the next thing is a join.
        most_nodes: with as many, no more join.
        step_s: delays are up to so long.
        policies: to which the job may be switched.
    """

    def __init__(
        self,
        folder: Path,
        *,
        seed: int,
        seconds: float,
        keep_nodes: int,
        most_nodes: int,
        step_s: float = 0.1,
        policies: Sequence[PolicyName] = (),
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
        self._strikes: dict[Blow, Callable[[int, list[int]], bool]] = {
            Blow.KILL: lambda victim, nodes: self._signal(victim, signal.SIGKILL),
            Blow.STOP: lambda victim, nodes: self._signal(victim, signal.SIGSTOP),
            Blow.PAUSE: lambda victim, nodes: self._pause(victim),
            Blow.BURST: lambda victim, nodes: self._burst({victim, nodes[nodes.index(victim) - 1]}),
            Blow.SLOW: lambda victim, nodes: self._slow_down(victim),
            Blow.COORDINATOR: lambda victim, nodes: self._kill_coordinator(),
            Blow.NOTICE: lambda victim, nodes: self._signal(victim, signal.SIGTERM),
            Blow.DRAIN: lambda victim, nodes: bool(live.drain(self._folder, victim, 30.0)),
            Blow.JOIN: lambda victim, nodes: self._join_one(),
        }
        self._policies = policies

    def __call__(self, record: AnyRecord, time_s: float) -> None:
        self._records.put(record)
        if self._thread.ident is None:
            self._thread.start()

    def join(self) -> None:
        """Wait for the end. Raises what went wrong."""
        self._thread.join(2 * PATIENCE_S)
        if self.error is not None:
            raise self.error
        if self._thread.is_alive():
            raise TimeoutError(f"the run is over, and its chaos is not, after {self.told.log[-5:]}")

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
        if blow is Blow.SWITCH:
            self._switch(share)
        elif self._strikes[blow](victim, nodes):
            self.told.blows[blow.value] += 1
            self.told.log.append(f"{blow.value} {victim}")

    def _switch(self, share: float) -> None:
        if self._policies:
            name = self._policies[int(share * len(self._policies))]
            live.switch(self._folder, name.value)
            self.told.blows[Blow.SWITCH.value] += 1
            self.told.log.append(f"switch {name.value}")

    def _signal(self, node: int, number: signal.Signals) -> bool:
        """To the processes of a node; whether there were any."""
        pids = workers_of(self._folder, node)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return bool(pids)

    def _burst(self, victims: set[int]) -> bool:
        struck = sum(self._signal(node, signal.SIGKILL) for node in sorted(victims))
        if struck == 1:
            self.told.blows[Blow.KILL.value] += 1  # the other was gone
        return struck > 1

    def _pause(self, node: int) -> bool:
        if not self._signal(node, signal.SIGSTOP):
            return False
        self._wait_for_steps(1)
        self._signal(node, signal.SIGCONT)
        return True

    def _slow_down(self, node: int) -> bool:
        pids = workers_of(self._folder, node)
        ends = self.told.committed + SLOW_STEPS
        while self.told.committed < ends and not self._is_over and node in self._live and not self._lacks_nodes:
            for number in (signal.SIGSTOP, signal.SIGCONT):
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
                self._take_records(SLOW_S)
        return bool(pids)

    def _kill_coordinator(self) -> bool:
        pid = coordinator_of(self._folder)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return pid is not None

    def _join_one(self) -> bool:
        before = self.told.joined
        live.add(self._folder, 1)
        self._wait(lambda: self.told.joined > before)
        return True

    def _see_it_out(self) -> None:
        """No more blows: the rest of the job, with nodes when there are too few."""
        while not self._is_over:
            self._wait_for_steps(1)

    # What the run tells

    def _wait_for_steps(self, steps: int) -> None:
        """Until so many more are committed; nodes are added when there are too few to go on."""
        committed = 0
        while committed < steps and not self._is_over:
            if self._lacks_nodes:
                with contextlib.suppress(UserError):
                    self._strike(Blow.JOIN, 0.0)
                continue
            committed += isinstance(self._take_record(PATIENCE_S), StepCommitted)

    @property
    def _lacks_nodes(self) -> bool:
        return self._is_waiting and len(self._live) < self._keep

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
                self.told.struck += record.detect_ms is not None
            case NodeLeaving(cause="preemption notice"):
                self.told.struck += 1
            case PolicySwitched():
                self.told.switched += 1
            case Restored():
                self.told.restored += record.from_step - record.to_step
            case NodeReleased():
                self._live.discard(record.node)
                self.told.released += 1
            case Waiting():
                self.told.waited += 1
                self._is_waiting = True
            case StepCommitted():
                self._is_waiting = False
                self.told.committed += 1
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


def coordinator_of(folder: Path) -> int | None:
    """Pid of the run's coordinator, where it is a process of its own: it says so in its name, and has its log."""
    log = str((RunFolder(folder).logs / "coordinator.log").resolve())
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                serves = (process / "comm").read_text().strip() == "coordinator"
                if serves and os.readlink(process / "fd" / "1") == log:
                    return int(process.name)
    return None


def losses(folder: Path) -> dict[int, float]:
    """By step; the text of a loss gives back its very bits."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return {entry["step"]: entry["loss"] for entry in map(json.loads, lines)}


def chaos_job(steps: int) -> planaria.Job:
    """The demo's, that waits when nodes run low."""
    job = planaria.load_job(ROOT / "examples" / "demo.toml")
    train = msgspec.structs.replace(job.train, steps=steps, global_batch=24)
    model = msgspec.structs.replace(job.model, config={"n_layer": 6, "n_embd": 64, "n_head": 4, "n_positions": 64})
    resilience = msgspec.structs.replace(job.resilience, when_exhausted=WhenExhausted.WAIT)
    run = msgspec.structs.replace(job.run, checkpoint_every=10)
    return msgspec.structs.replace(job, model=model, train=train, resilience=resilience, run=run)


SHORT_STEPS = 40


def short_job(nodes: int) -> planaria.Job:
    """Of a few seconds, for many runs. All have the same reference, whatever the number of nodes."""
    job = chaos_job(SHORT_STEPS)
    train = msgspec.structs.replace(job.train, global_batch=18, microbatch=2, sequence_length=16)
    model = msgspec.structs.replace(job.model, config={"n_layer": 4, "n_embd": 16, "n_head": 2, "n_positions": 16})
    run = msgspec.structs.replace(job.run, checkpoint_every=4)
    cluster = msgspec.structs.replace(job.cluster, nodes=nodes)
    return msgspec.structs.replace(job, model=model, train=train, run=run, cluster=cluster)


def drawn_job(draw: random.Random) -> planaria.Job:
    """A short job under any policy. Those without dropped samples all have the same reference."""
    job = short_job(draw.randint(6, 9))
    resilience = msgspec.structs.replace(
        job.resilience,
        policy=draw.choice(list(PolicyName)),
        redundancy=draw.choice(list(Redundancy)),
        allow_drop=draw.random() < 0.5,
    )
    zones = draw.choice([(), (), ("left", "right"), ("a", "b", "c")])
    cluster = msgspec.structs.replace(job.cluster, zones=zones)
    return msgspec.structs.replace(job, resilience=resilience, cluster=cluster)


def switches_of(job: planaria.Job) -> list[PolicyName]:
    """Policies that the job's user may ask for."""
    return [name for name in PolicyName if name is not PolicyName.DROP or job.resilience.may_drop]


@dataclass(slots=True)
class Verdict:
    """What all runs came to.

    Attributes:
        steps: committed, and in the final state.
        failures: seed and what was wrong, of each run that did not end with the reference's bits.
    """

    runs: int = 0
    steps: int = 0
    skipped: int = 0
    duplicated: int = 0
    told: Told = field(default_factory=Told)
    failures: list[tuple[int, str]] = field(default_factory=list)

    def judge(self, seed: int, told: Told, trained: planaria.TrainResult, alone: planaria.TrainResult) -> None:
        """Count a run, and compare it with one process alone."""
        self.runs += 1
        self.told.add(told)
        summary = json.loads((trained.folder / "summary.json").read_text())
        self.steps += trained.steps
        self.skipped += summary["skipped_microbatches"]
        self.duplicated += summary["duplicated_microbatches"]
        if trained.status.value != "completed":
            self.failures.append((seed, f"{trained.status.value}: {trained.message}"))
        elif losses(trained.folder) != losses(alone.folder):
            self.failures.append((seed, "a step's loss differs"))
        elif trained.weights_sha256 is None or trained.weights_sha256 != alone.weights_sha256:
            self.failures.append((seed, "the final weights differ"))
        elif found := judge_folder(trained.folder):
            self.failures.append((seed, f"the witness: {found[0]}"))

    def as_json(self) -> dict[str, object]:
        told = self.told
        return {
            "runs": self.runs,
            "faults": told.faults,
            "blows": dict(sorted(told.blows.items())),
            "struck_at_instructions": told.struck,
            "nodes_lost": dict(sorted(told.lost.items())),
            "nodes_joined": told.joined,
            "nodes_released": told.released,
            "switches_of_policy": told.switched,
            "recoveries": told.recovered,
            "waited_for_nodes": told.waited,
            "steps": self.steps,
            "steps_trained_again_from_a_checkpoint": told.restored,
            "microbatches_skipped": self.skipped,
            "microbatches_counted_twice": self.duplicated,
            "runs_with_other_bits": [{"seed": seed, "what": what} for seed, what in self.failures],
        }


def long_run(seconds: float, seed: int, steps: int) -> Verdict:
    """One job for all of the time."""
    steps = steps or max(40, round(2 * seconds))
    job = chaos_job(steps)
    name = time.strftime("chaos-%Y%m%d-%H%M%S")
    folder = Path(job.run.folder) / name
    chaos = Chaos(folder, seed=seed, seconds=seconds, keep_nodes=5, most_nodes=9, policies=switches_of(job))
    faults = ordered_faults(seed, job.cluster.nodes, 20, max(20, steps // 4))
    footprint = Footprint(folder)
    footprint.start()
    trained = planaria.train(job, name=name, faults=faults, observers=[chaos], progress=True)
    footprint.stop()
    chaos.join()
    alone = planaria.reference(job, name=f"{name}-reference", progress=True)
    verdict = Verdict()
    verdict.judge(seed, chaos.told, trained, alone)
    verdict.failures += [(seed, what) for what in grown(footprint.samples)]
    print(told_of(footprint.samples) if footprint.samples else "too short to be sampled")
    return verdict


def short_runs(faults: int, seconds: float, seed: int, console: Console) -> Verdict:
    """Job after job, each with its own seed, until so many faults were injected or the time is over. What a run that
    went wrong left behind is kept."""
    verdict = Verdict()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="planaria-chaos-") as scratch:
        alone = train_reference(short_job(7), RunFolder.create(scratch, "reference"))
        kept = Path(tempfile.mkdtemp(prefix="planaria-chaos-failures-"))
        with LocalNodes(kept / "forkserver.log", "gpt2") as nodes:
            while verdict.told.faults < faults and time.monotonic() - began < seconds:
                _short_run(verdict, seed, Path(scratch), nodes, alone)
                if verdict.failures and verdict.failures[-1][0] == seed:
                    shutil.move(Path(scratch) / f"run-{seed}", kept)
                    console.print(f"[bold red]seed {seed}: {verdict.failures[-1][1]}[/]; see {kept / f'run-{seed}'}")
                shutil.rmtree(Path(scratch) / f"run-{seed}", ignore_errors=True)
                passed = time.monotonic() - began
                console.print(f"seed {seed}: {verdict.told.faults} faults in {verdict.runs} runs, {passed:.0f} s")
                seed += 1
        if not verdict.failures:
            shutil.rmtree(kept)
    return verdict


def _short_run(verdict: Verdict, seed: int, scratch: Path, nodes: LocalNodes, alone: planaria.TrainResult) -> None:
    job = drawn_job(random.Random(f"job of {seed}"))
    folder = RunFolder.create(scratch, f"run-{seed}")
    folder.job.write_bytes(job_json(job))
    chaos = Chaos(
        folder.path, seed=seed, seconds=6.0, keep_nodes=5, most_nodes=9, step_s=0.03, policies=switches_of(job)
    )
    ordered = ordered_faults(seed, job.cluster.nodes, 5, SHORT_STEPS - 5)
    try:
        trained = train_job(TrainRequest(job=job, folder=folder, faults=ordered, observers=(chaos,)), nodes)
        chaos.join()
        if drops := read_drops(folder.events):
            alone = train_reference(job, RunFolder.create(scratch, f"alone-{seed}"), drops=drops)
    except Exception as error:  # a finding, like other bits; the other runs shall tell theirs
        verdict.runs += 1
        verdict.told.add(chaos.told)
        verdict.failures.append((seed, f"{type(error).__name__}: {error}"))
        return
    verdict.judge(seed, chaos.told, trained, alone)


def main() -> int:
    """Trains under blows, trains alone, and compares."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, help="of blows (default: 300; with --faults no limit)")
    parser.add_argument("--seed", type=int, default=0, help="of the schedule; of the first run where there are many")
    parser.add_argument("--steps", type=int, default=0, help="of the job (default: two a second)")
    parser.add_argument("--faults", type=int, default=0, help="many short runs, until so many faults were injected")
    parser.add_argument("--json", type=Path, help="write the summary here, too")
    given = parser.parse_args()
    console = Console(highlight=False)
    began = time.monotonic()
    if given.faults:
        limit_s = math.inf if given.seconds is None else given.seconds
        verdict = short_runs(given.faults, limit_s, given.seed, console)
    else:
        verdict = long_run(300.0 if given.seconds is None else given.seconds, given.seed, given.steps)
    tell(console, verdict, time.monotonic() - began)
    if given.json is not None:
        given.json.write_text(json.dumps(verdict.as_json(), indent=1) + "\n")
    return 1 if verdict.failures else 0


def tell(console: Console, verdict: Verdict, took_s: float) -> None:
    """A line for each kind of fault, and what they came to."""
    told = verdict.told
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("what was done")
    table.add_column("times", justify="right")
    table.add_row("struck itself at an instruction", str(told.struck))
    for blow in Blow:
        table.add_row(blow.value, str(told.blows[blow.value]))  # what was never done is seen, too
    console.print(table)
    causes = ", ".join(f"{count} {cause}" for cause, count in sorted(told.lost.items()))
    console.print(
        f"nodes lost: {sum(told.lost.values())} ({causes}); released: {told.released}; joined: {told.joined}; "
        f"switches of policy: {told.switched}; recoveries: {told.recovered}; waited for nodes: {told.waited} times"
    )
    console.print(
        f"{told.faults} faults in {verdict.runs} runs of {verdict.steps} steps, {took_s:.0f} s; "
        f"steps trained again from a checkpoint: {told.restored}; "
        f"microbatches skipped: {verdict.skipped}, counted twice: {verdict.duplicated}"
    )
    for seed, what in verdict.failures:
        console.print(f"[bold red]seed {seed}: {what}[/]")
    console.print(f"bit-identical: {'[bold red]NO' if verdict.failures else '[bold green]yes'}[/]")


if __name__ == "__main__":
    sys.exit(main())
