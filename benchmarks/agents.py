"""What a coordinator bears: thousands of agents that join at once, workers that vote once a second, losses among them;
and an hour of 10,000 nodes in the simulator.

As it is, it prints every figure of scale that has a goal: 256, 1,024 and 4,096 agents under TLS.

The coordinator is the real one: machine, policy, server, sockets, TLS, journal and the link to its supervisor, in one
thread of this process. The supervisor, another process, keeps the records, and with --observe has every view of
[observe]. The agents are sockets of a third process (crowd.py), two for each: an agent's and its worker's.

join: from the first connect to the last node's having joined; plan: to the last worker's having the first plan.
cpu: share of a core that the coordinator's thread takes in steps without a loss.
commit: from the last vote's leaving to the last worker's having the commit.
halt, act, decide: from a host's closing its sockets to the last arrival of the halt; then of the plan that finishes
the step at those whose work it changes or that were halted, and at all.
decide.cpu: what the coordinator's thread computed and sent for it, on a core of its own.
act.workers: those whose work it changes, or that were halted; they are told first.
journal.loss: bytes that are written of a loss, with the plan that finishes the step.
place: from the last vote for the step that was finished to the last worker's having the new placement.
rolling: a tenth of all goes within ten seconds: from each one's going to the arrival of a plan without it at those
whose work that changes; and how long it took until a step without a loss was committed.
simulate: processor and memory of `planaria simulate` for an hour of 10,000 nodes, a tenth of which goes.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import resource
import secrets
import select
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from crowd import TOKEN, WARM_UP_STEPS, fork, rolling_steps, single_steps
from crowd_members import Script, Seen
from figures import SCRATCH, Figures, note
from made_up import uniform_profile
from sides import make_job

from planaria.job.settings import Job
from planaria.plan.plan import NodeId
from planaria.policy.planner import Planner
from planaria.policy.templates import TemplatesPolicy
from planaria.protocol.coordinator import Coordinator, RunSettings
from planaria.protocol.membership.liveness import Limits
from planaria.protocol.messages.agent import Welcome
from planaria.protocol.messages.events import Event, NodeGone, Received
from planaria.protocol.messages.journal import Fate, JournalEntry, JournalNode, JournalPlan
from planaria.protocol.messages.records import AnyRecord, NodeJoined, NodeLost, StepCommitted
from planaria.runtime.component_settings import planner_settings
from planaria.runtime.coordinator.agents import Agents
from planaria.runtime.coordinator.server import Server
from planaria.runtime.coordinator.supervisor_link import Link, Told
from planaria.runtime.journal.sqlite_journal import SqliteJournal
from planaria.runtime.machine.limits import raise_file_limit
from planaria.runtime.observers.view import ViewedRun
from planaria.runtime.observers.view_thread import Views
from planaria.runtime.observers.views import views_of
from planaria.runtime.run_folder.recorder import Recorder
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.wire.certificates import make_certificates
from planaria.runtime.wire.socket_server import listen
from planaria.runtime.wire.tls import Security

JOB = """
[model]
type = "none"
[train]
steps = {steps}
global_batch = {batch}
microbatch = 1
sequence_length = 64
[cluster]
nodes = {nodes}
launcher = "agents"
host = "127.0.0.1"
[resilience]
fault_tolerance = 1
policy = "templates"
min_nodes_per_pipeline = {nodes_per_pipeline}
"""
WATCHED = (
    "observe.tensorboard=true",
    "observe.wandb=agents",
    f"observe.mlflow={SCRATCH / 'mlflow'}",
    "observe.metrics_port=29463",
    "observe.command='true'",
)
"""Every view but the page, which only reads what the recorder writes, and a webhook, which needs a server."""
NUM_LAYERS = 24
NODES_PER_PIPELINE = 16
MICROBATCHES_A_PIPELINE = 16
LONG_TURN_S = 0.02
SIMULATED_NODES = 10_000
SIMULATED = (
    str(Path(__file__).parent.parent / "examples" / "scenarios" / "spot.toml"),
    *("--set", f"cluster.nodes={SIMULATED_NODES}"),
    *("--set", f"job.global_batch={16 * SIMULATED_NODES}"),
    *("--set", "failures.hours=1"),
    *("--policy", "templates", "--runs", "1", "--processes", "1", "--json"),
)
PATIENT = Limits(silence_s=60.0, oversubscribed_silence_s=60.0, least_s=600.0, join_s=600.0)
"""Thousands of agents share one process here: the first plans alone keep it from beating for seconds."""


class NoLauncher:
    """Nodes that nobody starts, watches or kills."""

    def __init__(self) -> None:
        self._never, self._other = socket.socketpair()

    def fileno(self) -> int:
        return self._never.fileno()

    def lost(self) -> list[tuple[NodeId, str]]:
        return []

    def start(self, node: NodeId) -> None:
        return

    def kill(self, node: NodeId) -> None:
        return

    def is_runnable(self, node: NodeId) -> bool:
        return False

    def all_ended(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Turn:
    """One event that the server took: its kind, when it was begun, and the thread's CPU seconds for it."""

    kind: str
    began: float
    cpu_s: float


class CountedJournal(SqliteJournal):
    """Notes the bytes of each loss: what is written of the lost node, and of the plan after it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.of_losses: list[int] = []
        self._of_loss = 0
        self._bytes = 0

    def _insert(self, body: bytes, lasts: bool) -> None:
        super()._insert(body, lasts)
        self._bytes += len(body)

    def write(self, entry: JournalEntry) -> None:
        before = self._bytes
        super().write(entry)
        is_lost = isinstance(entry, JournalNode) and entry.fate is Fate.LOST
        if is_lost or (self._of_loss and isinstance(entry, JournalPlan)):
            self._of_loss += self._bytes - before
        if self._of_loss and isinstance(entry, JournalPlan):
            self.of_losses.append(self._of_loss)
            self._of_loss = 0


class TimedServer(Server):
    """Notes the events that are long or matter."""

    turns: list[Turn]

    def handle(self, event: Event) -> None:
        began, cpu = time.monotonic(), time.thread_time()
        super().handle(event)
        cpu = time.thread_time() - cpu
        if cpu > 1e-3 or isinstance(event, NodeGone):
            kind = type(event.message).__name__ if isinstance(event, Received) else type(event).__name__
            self.turns.append(Turn(kind, began, cpu))


@dataclass(slots=True)
class Meter:
    """An observer in the coordinator's thread: wall and CPU time of the thread, as things happen.

    Attributes:
        at: at every commit.
        joined: when the last node had joined that was there at the first plan.
        cpu_joined: the thread's CPU time by then.
    """

    at: dict[int, tuple[float, float]] = field(default_factory=dict)
    joined: float = 0.0
    cpu_joined: float = 0.0

    def __call__(self, record: AnyRecord, time_s: float) -> None:
        if isinstance(record, StepCommitted):
            self.at[record.step] = time.monotonic(), time.thread_time()
        if isinstance(record, NodeJoined) and not self.at:
            self.joined, self.cpu_joined = time.monotonic(), time.thread_time()
        if isinstance(record, NodeLost) and record.cause != "connection closed":
            note(f"node {record.node} is lost: {record.cause}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a run is made.

    Attributes:
        losses: that come one at a time.
        rolling: share of the agents that go within ten seconds.
        tls: whether connections are under TLS.
        probes: whether hosts measure their links.
        seed: of all that is drawn.
        step_s: how long a step takes.
        profile_to: a file for a cProfile of the coordinator's thread; None: it is not profiled.
    """

    losses: int = 0
    rolling: float = 0.0
    tls: bool = True
    probes: bool = True
    seed: int = 1
    step_s: float = 1.0
    profile_to: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run.

    Attributes:
        shares: of a core, in each step without a loss.
        steps_s: of those steps.
        join_s: until the last node had joined.
        join_cpu_s: what the coordinator's thread computed until then.
        rolling_share: of a core, from the beginning of the rolling loss's first step to the end of its last.
        most_mb: the most memory of the coordinator's process so far, in MB.
        keeper_share: of a core, that the process took which keeps the records and shows them.
        seen: what the agents saw.
        turns: what the server took long for.
        journal_bytes: that were written of each loss.
    """

    shares: list[float]
    steps_s: list[float]
    join_s: float
    join_cpu_s: float
    rolling_share: float
    most_mb: float
    keeper_share: float
    seen: Seen
    turns: list[Turn]
    journal_bytes: list[int]


def measure(agents: int, options: Options, watched: Sequence[str] = ()) -> Measured:
    """Run one coordinator with so many agents. `watched`: overrides of the job for views of it."""
    most_losses = round(options.rolling * agents)
    steps = WARM_UP_STEPS + single_steps(options.losses) + (rolling_steps() if most_losses else 0)
    pipelines = max(2, agents // NODES_PER_PIPELINE)
    text = JOB.format(
        steps=steps,
        nodes=agents,
        nodes_per_pipeline=NODES_PER_PIPELINE if agents >= 3 * NODES_PER_PIPELINE else 2,
        batch=pipelines * MICROBATCHES_A_PIPELINE,
    )
    job = make_job(text, *watched)
    began = time.monotonic()
    profile = uniform_profile(NUM_LAYERS, 1e-3, parameter_bytes=1 << 20, output_bytes=1)
    policy = TemplatesPolicy.of(Planner(profile, planner_settings(job, profile)))
    note(f"{agents} agents: templates after {time.monotonic() - began:.1f} s")
    folder = RunFolder.create(job.run.folder, f"agents-{secrets.token_hex(4)}")
    journal = CountedJournal(folder.journal)
    journal.start()
    keeper, near = _keep_records(folder, job)
    link, meter = Link(near, waits=True), Meter()

    def tell(record: AnyRecord, time_s: float) -> None:
        link.send(Told(record, time_s))

    tls = _certificates() if options.tls else None
    welcome = Welcome(job=job, run_folder=str(folder.path), mark="mark", patience_s=600.0)
    try:
        server = TimedServer(
            Coordinator(_run_settings(job, folder), policy),
            TOKEN,
            journal,
            NoLauncher(),
            (tell, meter),
            lambda command: None,
            PATIENT,
            agents=Agents(welcome, TOKEN, {}, ""),
            patience_s=600.0,
            mark="mark",
            security=None if tls is None else Security(tls),
        )
        server.turns = []
        listener = listen("127.0.0.1", 0)
        server.start(listener)
        script = Script(
            address=f"127.0.0.1:{listener.getsockname()[1]}",
            count=agents,
            losses=options.losses,
            rolling=most_losses,
            tls=tls,
            probes=options.probes,
            seed=options.seed,
            step_s=options.step_s,
        )
        pid, pipe = fork(script)
        cpu = time.thread_time()
        _serve(server, options.profile_to)
        server.close()
        with os.fdopen(pipe, "rb") as file:
            seen = Seen(**json.loads(file.read()))
        os.waitpid(pid, 0)
        link.close()
        _, _, used = os.wait4(keeper, 0)
    finally:
        journal.close()
        shutil.rmtree(folder.path)
    first, last = min(meter.at), max(meter.at)
    rolling = seen.rolling_steps
    return Measured(
        **_calm(meter, seen),
        join_s=meter.joined - seen.began,
        join_cpu_s=meter.cpu_joined - cpu,
        rolling_share=_share(meter, rolling[0] - 1, rolling[1]) if len(rolling) == 2 else 0.0,
        most_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        keeper_share=(used.ru_utime + used.ru_stime) / (meter.at[last][0] - meter.at[first][0]),
        seen=seen,
        turns=server.turns,
        journal_bytes=journal.of_losses,
    )


def _calm(meter: Meter, seen: Seen) -> dict[str, list[float]]:
    disturbed = {step + after for step in seen.loss_steps for after in (0, 1, 2)}
    if len(seen.rolling_steps) == 2:
        disturbed.update(range(seen.rolling_steps[0] - 1, seen.rolling_steps[1] + 2))
    calm = [s for s in sorted(meter.at) if s > WARM_UP_STEPS and s not in disturbed and s - 1 in meter.at]
    return {
        "shares": [_share(meter, step - 1, step) for step in calm],
        "steps_s": [meter.at[step][0] - meter.at[step - 1][0] for step in calm],
    }


def _share(meter: Meter, first: int, last: int) -> float:
    (before, cpu_before), (at, cpu) = meter.at[first], meter.at[last]
    return (cpu - cpu_before) / (at - before)


def _certificates() -> Path:
    folder = SCRATCH / f"certificates-{secrets.token_hex(4)}"
    make_certificates(folder, 1)
    return folder


def _keep_records(folder: RunFolder, job: Job) -> tuple[int, socket.socket]:
    """Start the supervisor's part: a process that keeps and shows the records; returns its pid and our end."""
    near, far = socket.socketpair()
    pid = os.fork()
    if pid:
        far.close()
        return pid, near
    try:
        near.close()
        viewed = ViewedRun(name=folder.path.name, job=job, folder=folder, step=0)
        views = Views(views_of(job, ""), viewed, lambda: False)
        link = Link(far, waits=False)
        with Recorder(folder, job) as recorder:
            while True:
                select.select([link], [], [])
                for news in link.news():
                    assert isinstance(news, Told)
                    recorder(news.record, news.time_s)
                    views(news.record, news.time_s)
                for complaint in views.notes():
                    note(complaint.text)
    except EOFError:
        views.close()
    finally:
        os._exit(0)


def _serve(server: Server, profile_to: Path | None) -> None:
    if profile_to is None:
        server.run()
        return
    profiler = cProfile.Profile()
    profiler.runcall(server.run)
    profiler.dump_stats(profile_to)


def _run_settings(job: Job, folder: RunFolder) -> RunSettings:
    return RunSettings(
        train=job.train,
        policy_name="templates",
        fault_tolerance=job.resilience.fault_tolerance,
        num_nodes=job.cluster.least_nodes,
        devices_per_node=1,
        num_groups=NUM_LAYERS,
        checkpoint_root=str(folder.checkpoints),
        checkpoint_every=0,
        resume=None,
        nodes_come=True,
    )


# Figures

AT_ONCE = "<= 100"
"""Milliseconds within which everybody who has to act is told."""


def tell(figures: Figures, agents: int, measured: Measured) -> None:
    is_full = agents >= 4096
    name, seen = f"agents.{agents}", measured.seen
    figures.add(f"{name}.join", measured.join_s, "s", goal="<= 5" if agents == 1024 else None)
    figures.add(f"{name}.join.cpu", measured.join_cpu_s, "s")
    figures.add(f"{name}.plan", seen.planned - seen.began, "s")
    figures.add(f"{name}.memory", measured.most_mb, "MB", goal="<= 1000" if is_full else None)
    figures.add_samples(f"{name}.cpu", measured.shares, "cores", goal="<= 1.0" if is_full else None)
    figures.add_samples(f"{name}.step", _ms(measured.steps_s), "ms")
    figures.add_samples(f"{name}.commit", _ms(seen.commits), "ms")
    for part, found in (("halt", seen.halted), ("act", seen.acting), ("decide", seen.decided)):
        goal = AT_ONCE if is_full and part == "act" else None
        figures.add_samples(f"{name}.{part}", _ms(found), "ms", goal=goal, goal_p99=goal)
    busy = [
        _busy_after(measured.turns, closed, decided)
        for closed, decided in zip(seen.closed_at, seen.decided, strict=False)
    ]
    figures.add_samples(f"{name}.decide.cpu", _ms(busy), "ms")
    figures.add_samples(f"{name}.act.workers", seen.num_acting, "workers")
    figures.add_samples(f"{name}.journal.loss", measured.journal_bytes, "bytes")
    figures.add_samples(f"{name}.place", _ms(seen.placed), "ms")
    if seen.rolling:
        goal = AT_ONCE if is_full else None
        figures.add_samples(f"{name}.rolling", _ms(seen.rolling), "ms", goal=goal, goal_p99=goal)
        figures.add(f"{name}.rolling.until-calm", seen.rolling_s, "s")
        figures.add(f"{name}.rolling.cpu", measured.rolling_share, "cores", goal="<= 1.0" if is_full else None)
    if seen.plan_bytes:
        figures.add(f"{name}.plan-bytes.first", seen.plan_bytes[0], "bytes")
        figures.add(f"{name}.plan-bytes.later", statistics.median(seen.plan_bytes[1:] or [0]), "bytes")


def _ms(seconds: Sequence[float]) -> list[float]:
    return [1e3 * one for one in seconds]


def _busy_after(turns: list[Turn], closed: float, decided_s: float) -> float:
    """Seconds of the server's long turns from a loss to its plan."""
    return sum(turn.cpu_s for turn in turns if closed <= turn.began <= closed + decided_s)


def simulate(figures: Figures) -> None:
    """Measure an hour of thousands of nodes in the simulator, imports and templates among it."""
    command = [sys.executable, "-m", "planaria.ui.cli.main", "simulate", *SIMULATED]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    told = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    (outcome,) = json.loads(told)
    (run,) = outcome["runs"]["templates"]
    name = f"simulate.{SIMULATED_NODES}"
    note(f"{name}: {run['losses']} losses, {run['joins']} joins, {run['steps']} steps")
    figures.add(f"{name}.cpu", used.ru_utime + used.ru_stime, "s")
    figures.add(f"{name}.memory", used.ru_maxrss / 1024, "MB", goal="<= 1000")


def watch(figures: Figures, agents: int, pairs: int, options: Options) -> None:
    """Measure runs with every view of [observe] and without, in turns."""
    found: dict[bool, list[Measured]] = {True: [], False: []}
    for pair in range(2 * pairs):
        is_watched = pair % 4 in (1, 2)
        found[is_watched].append(measure(agents, options, WATCHED if is_watched else ()))
    for is_watched, runs in found.items():
        name = f"agents.{agents}.{'watched' if is_watched else 'plain'}"
        figures.add_samples(f"{name}.cpu", [share for run in runs for share in run.shares], "cores")
        figures.add_samples(f"{name}.commit", [1e3 * s for run in runs for s in run.seen.commits], "ms")
        figures.add_samples(f"{name}.supervisor.cpu", [run.keeper_share for run in runs], "cores")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, nargs="*", default=[256, 1024, 4096], help="(default: %(default)s)")
    parser.add_argument("--losses", type=int, default=5, help="of each run, one at a time (default: %(default)s)")
    parser.add_argument("--rolling", type=float, default=0.1, help="share of the agents (default: %(default)s)")
    parser.add_argument("--step-s", type=float, default=1.0, help="seconds of a step (default: %(default)s)")
    parser.add_argument("--no-tls", action="store_true", help="plain connections")
    parser.add_argument("--no-probes", action="store_true", help="hosts do not measure their links")
    parser.add_argument("--no-simulation", action="store_true", help="leave the simulator out")
    parser.add_argument("--observe", type=int, default=0, metavar="PAIRS", help="runs with and without every view")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    parser.add_argument("--profile", type=Path, help="write a cProfile of the coordinator's thread here")
    given = parser.parse_args()
    os.environ.setdefault("WANDB_MODE", "offline")
    raise_file_limit()
    options = Options(
        losses=given.losses,
        rolling=given.rolling,
        tls=not given.no_tls,
        probes=not given.no_probes,
        seed=given.seed,
        step_s=given.step_s,
        profile_to=given.profile,
    )
    figures = Figures("a coordinator and its agents")
    if not (given.no_simulation or given.observe):
        simulate(figures)
    for agents in given.agents:
        if given.observe:
            watch(figures, agents, given.observe, options)
            continue
        measured = measure(agents, options)
        for turn in measured.turns:
            if turn.cpu_s > LONG_TURN_S:
                note(f"{turn.kind}: {1e3 * turn.cpu_s:.1f} ms of CPU")
        tell(figures, agents, measured)
    figures.finish(given.json)


if __name__ == "__main__":
    main()
