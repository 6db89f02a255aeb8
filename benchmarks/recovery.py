"""What a loss costs: nodes killed, stopped, noticed and added from outside, at random moments, on two jobs.

emulated: 12 workers whose compute is a timed wait (docs/howto/emulated-device.md): they do not share this machine's
cores.
real: the demo's job on 7 workers that compute; on a machine with fewer cores, all of them wait for cores.

One cycle: a node is killed with SIGKILL; the step is finished; the others are placed anew; a node is added and gets
work.

gap: of each worker of a pipeline without a lost member, how much longer than in undisturbed steps the longest pause
between two instructions is, around the loss.
work: the step that lost a node, over what its work should take: the plan that finished it as estimated, or, where the
loss came late, the microbatches that ran again after it.
salvage: microbatches that ran again, over those of the pipeline that broke.
resume: from the kill to the next commit, less an undisturbed step.
join: from the user's request to the new node's first instruction; boundary: the pause of the others then, beyond the
usual. spare: from the commit of the step that lost a node to the first instruction of a node that was there, idle.
restart: the coordinator's process killed, to the next commit, less a step; where it is a process of its own.
torchrun: seconds from a SIGKILL to the next step's end of its elastic restart of a small DDP job, without a checkpoint.
baseline: the same job started again from its last checkpoint, to its first commit, less a step.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import shutil
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from elastic_restart import against_torchrun
from figures import SCRATCH, Figures, note
from made_up import uniform_profile
from pauses import Traces
from watched import STILL_STEPS, Run

from planaria.job.parse import load_job, parse_job
from planaria.job.sections.resilience import WhenExhausted
from planaria.job.settings import Job
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.costs.stage_costs import pipeline_cost
from planaria.protocol.messages.records import NodeJoined, NodeLost, NodeReleased, PlanTaken, StepCommitted
from planaria.runtime.run_folder.run_folder import RunFolder

DEMO = Path(__file__).parents[1] / "examples" / "demo.toml"


# A loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """One kill, and what came of it. Moments are monotonic seconds.

    Attributes:
        step: that was lost in.
        killed: the kill.
        known: the coordinator knew.
        committed: the step was done.
        began: the step began.
        step_s: an undisturbed step.
        before: the plan in force.
        finishing: the plan that finished the step; None: nothing ran again.
    """

    node: int
    step: int
    killed: float
    known: float
    committed: float
    began: float
    step_s: float
    before: PlanTaken
    finishing: PlanTaken | None

    @property
    def resume_ms(self) -> float:
        return (self.committed - self.killed - self.step_s) * 1e3

    @property
    def added(self) -> dict[tuple[tuple[int, int, int], ...], int]:
        """Microbatches that pipelines got beside their own, to finish the step."""
        if self.finishing is None:
            return {}
        before = dict(zip(self.before.pipelines, self.before.microbatches, strict=True))
        after = zip(self.finishing.pipelines, self.finishing.microbatches, strict=True)
        return {pipeline: count - before[pipeline] for pipeline, count in after if pipeline in before}

    @property
    def salvage_ratio(self) -> float:
        """Microbatches that ran again over those of the pipeline that broke."""
        pairs = zip(self.before.pipelines, self.before.microbatches, strict=True)
        broken = sum(count for pipeline, count in pairs if any(worker == self.node for worker, _, _ in pipeline))
        return sum(max(0, count) for count in self.added.values()) / broken

    def work_ratio(self, profile: ModelProfile) -> float:
        """The step's duration over what its work should take."""
        if self.finishing is None:
            return (self.committed - self.began) / self.step_s
        again_s = 0.0
        for pipeline, count in self.added.items():
            cost = pipeline_cost(profile, [(first, end) for _, first, end in pipeline])
            again_s = max(again_s, cost.time_s(count))
        # What this machine adds to every step beside the estimate, it adds to this one, too.
        own = max(1.0, self.step_s / self.before.estimated_step_s)
        expected = max(self.finishing.estimated_step_s * own, self.killed - self.began + again_s * own)
        return (self.committed - self.began) / expected


def lose(run: Run, draw: random.Random, number: int = signal.SIGKILL) -> Loss:
    """Strike a random node at a random moment, and wait until the step is done."""
    run.still()
    step_s, before = run.step_s(), run.plan
    began = run.told[-1]
    assert isinstance(began.record, StepCommitted)
    run.pause(draw.uniform(0, step_s))
    node = draw.choice(run.placed)
    killed = run.signal(node, number)
    lost = run.until(lambda record: isinstance(record, NodeLost) and record.node == node)
    assert isinstance(lost.record, NodeLost)
    step = lost.record.step
    start = max(t.at_s for t in run.told if isinstance(t.record, StepCommitted) and t.record.step < step)
    committed = run.until(lambda record: isinstance(record, StepCommitted) and record.step >= step)
    finishing = next(
        (
            t.record
            for t in run.told[::-1]
            if isinstance(t.record, PlanTaken) and t.record.purpose == "finish step" and t.record.step == step
        ),
        None,
    )
    return Loss(
        node=node,
        step=step,
        killed=killed,
        known=lost.at_s,
        committed=committed.at_s,
        began=start,
        step_s=step_s,
        before=before,
        finishing=finishing,
    )


# The cycles


@dataclass(slots=True)
class Samples:
    """In ms, but for the ratios `work` and `salvage`."""

    step: list[float] = field(default_factory=list)
    detect: list[float] = field(default_factory=list)
    stopped: list[float] = field(default_factory=list)
    resume: list[float] = field(default_factory=list)
    work: list[float] = field(default_factory=list)
    salvage: list[float] = field(default_factory=list)
    gap: list[float] = field(default_factory=list)
    join: list[float] = field(default_factory=list)
    boundary: list[float] = field(default_factory=list)
    notice: list[float] = field(default_factory=list)
    spare: list[float] = field(default_factory=list)
    restart: list[float] = field(default_factory=list)
    baseline: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Join:
    """A node that was added: when it was asked for, and the step that it first has work in."""

    node: int
    asked: float
    step: int
    others: tuple[int, ...]


def join_one(run: Run) -> Join:
    """Add a node and wait until a plan has it."""
    asked = time.monotonic()
    node = run.add()
    others = tuple(run.placed)
    taken = run.until(lambda record: isinstance(record, PlanTaken) and _has(record, node)).record
    assert isinstance(taken, PlanTaken)
    return Join(node, asked, taken.step, others)


def _has(plan: PlanTaken, node: int) -> bool:
    return any(stage[0] == node for pipeline in plan.pipelines for stage in pipeline)


def cycles(job: Job, name: str, kills: int, seed: int, samples: Samples) -> None:
    """Kill, join, kill, join; then what happens less often."""
    draw = random.Random(seed)
    run = Run(job, name)
    losses: list[Loss] = []
    joins: list[Join] = []
    try:
        run.until(lambda record: isinstance(record, StepCommitted))
        for number in range(kills):
            loss = lose(run, draw)
            losses.append(loss)
            note(f"{name} kill {number + 1} of {kills}: node {loss.node}, {loss.resume_ms:.0f} ms beyond a step")
            joins.append(join_one(run))
        for _ in range(max(2, kills // 10)):
            stopped = lose(run, draw, signal.SIGSTOP)
            samples.stopped.append((stopped.known - stopped.killed) * 1e3)
            joins.append(join_one(run))
            samples.notice.append(_notice_ms(run, draw))
            joins.append(join_one(run))
        samples.restart += _restarts_ms(run, draw, max(3, kills // 10))
        run.still()
        step_s = run.step_s()
        run.stop()
    finally:
        run.abandon()
    profile = msgspec.json.decode(run.folder.profile.read_bytes(), type=ModelProfile)
    traces = Traces(run.folder)
    for loss in losses:
        samples.step.append(loss.step_s * 1e3)
        samples.detect.append((loss.known - loss.killed) * 1e3)
        samples.resume.append(loss.resume_ms)
        samples.work.append(loss.work_ratio(profile))
        samples.salvage.append(loss.salvage_ratio)
        samples.gap += traces.gaps_ms(loss.before, loss.node, loss.step, loss.killed, loss.known)
    for join in joins:
        first = traces.first(join.node)
        if first is not None:
            samples.join.append((first - join.asked) * 1e3)
        samples.boundary += traces.boundary_ms(
            join.others, join.step, range(join.step + 1, join.step + 1 + STILL_STEPS)
        )
    samples.baseline.append(_started_again_ms(job, run.folder, step_s))
    shutil.rmtree(run.folder.path)


def _notice_ms(run: Run, draw: random.Random) -> float:
    run.still()
    run.pause(draw.uniform(0, run.step_s()))
    node = draw.choice(run.placed)
    noticed = run.signal(node, signal.SIGTERM)
    return (run.until(lambda r: isinstance(r, NodeReleased) and r.node == node).at_s - noticed) * 1e3


def _restarts_ms(run: Run, draw: random.Random, count: int) -> list[float]:
    """Kill the coordinator, where it is a process of its own."""
    found = []
    for _ in range(count):
        run.still()
        step_s = run.step_s()
        run.pause(draw.uniform(0, step_s))
        pid = run.coordinator
        if pid is None:
            note("the coordinator is no process of its own here: its restart is not measured")
            return []
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        run.pause(0.01)
        found.append((run.until(lambda r: isinstance(r, StepCommitted)).at_s - killed - step_s) * 1e3)
    return found


def _started_again_ms(job: Job, folder: RunFolder, step_s: float) -> float:
    """From the command to the first commit."""
    run = Run(job, "again", resume=folder)
    try:
        first = run.until(lambda record: isinstance(record, StepCommitted))
        run.stop()
    finally:
        run.abandon()
    return (first.at_s - run.began_s - step_s) * 1e3


def spares(job: Job, count: int, seed: int, samples: Samples) -> None:
    """A node more than the job has use for; another dies, and it takes over at the step's end."""
    draw = random.Random(seed)
    run = Run(job, "spare")
    found: list[tuple[int, float]] = []
    try:
        run.until(lambda record: isinstance(record, StepCommitted))
        for _ in range(count):
            spare = run.add()
            run.until(lambda record, spare=spare: isinstance(record, NodeJoined) and record.node == spare)
            loss = lose(run, draw)
            if not _has(run.plan, spare):
                run.until(lambda record, spare=spare: isinstance(record, PlanTaken) and _has(record, spare))
            found.append((spare, loss.committed))
        run.still()
        run.stop()
    finally:
        run.abandon()
    traces = Traces(run.folder)
    for spare, committed in found:
        first = traces.first(spare)
        if first is not None:
            samples.spare.append((first - committed) * 1e3)
    shutil.rmtree(run.folder.path)


# The jobs


def _emulated(num_layers: int, layer_s: float) -> ModelProfile:
    return uniform_profile(num_layers, layer_s, parameter_bytes=4_000_000, output_bytes=1_000_000)


def emulated_job(nodes: int, nodes_per_pipeline: int, microbatches: int, profile: ModelProfile) -> Job:
    file = SCRATCH / f"profile-{secrets.token_hex(4)}.json"
    SCRATCH.mkdir(parents=True, exist_ok=True)
    file.write_bytes(msgspec.json.encode(profile))
    text = f"""
[train]
steps = 1000000
global_batch = {microbatches}
microbatch = 1
sequence_length = 16
[cluster]
nodes = {nodes}
device = "emulated"
profile = "{file}"
[resilience]
policy = "templates"
min_nodes_per_pipeline = {nodes_per_pipeline}
when_exhausted = "wait"
"""
    return parse_job(text, origin="benchmark")


def real_job() -> Job:
    job = load_job(DEMO, ["train.steps=1000000", "resilience.policy=templates"])
    resilience = msgspec.structs.replace(job.resilience, when_exhausted=WhenExhausted.WAIT)
    return msgspec.structs.replace(job, resilience=resilience)


def tell(figures: Figures, name: str, samples: Samples, *, emulated: bool) -> None:
    """Goals are those of emulated devices: real compute shares this machine's cores."""

    def goal(text: str) -> str | None:
        return text if emulated else None

    figures.add_samples(f"{name}.step", samples.step, "ms")
    figures.add_samples(f"{name}.gap", samples.gap, "ms", goal=goal("<= 20"))
    figures.add_samples(f"{name}.work", samples.work, "ratio", goal=goal("<= 1.1"))
    figures.add_samples(f"{name}.salvage", samples.salvage, "ratio", goal="<= 1.0", goal_p99="<= 1.0")
    figures.add_samples(f"{name}.resume-less-a-step", samples.resume, "ms", goal="<= 200", goal_p99="<= 500")
    figures.add_samples(f"{name}.detect.kill", samples.detect, "ms")
    figures.add_samples(f"{name}.detect.stop", samples.stopped, "ms")
    figures.add_samples(f"{name}.join", samples.join, "ms", goal="<= 8000")
    figures.add_samples(f"{name}.join.boundary", samples.boundary, "ms")
    figures.add_samples(f"{name}.spare", samples.spare, "ms", goal="<= 1000")
    figures.add_samples(f"{name}.notice", samples.notice, "ms")
    figures.add_samples(f"{name}.restart-less-a-step", samples.restart, "ms", goal="<= 1000")
    figures.add_samples(f"{name}.baseline.started-again", samples.baseline, "ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="on emulated devices (default: %(default)s)")
    parser.add_argument("--real-kills", type=int, default=10, help="with real compute (default: %(default)s)")
    parser.add_argument("--spares", type=int, default=5, help="spares put to use (default: %(default)s)")
    parser.add_argument("--torchrun", type=int, default=3, help="elastic restarts beside (default: %(default)s)")
    parser.add_argument("--layer-ms", type=float, default=2.0, help="forward of an emulated layer (default: 2)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    given = parser.parse_args()
    figures = Figures("recovery")
    layer_s = given.layer_ms / 1e3
    if given.kills:
        samples = Samples()
        cycles(emulated_job(12, 4, 24, _emulated(24, layer_s)), "emulated", given.kills, given.seed, samples)
        if given.spares:
            spares(emulated_job(4, 2, 2, _emulated(2, 10 * layer_s)), given.spares, given.seed, samples)
        tell(figures, "recovery.emulated", samples, emulated=True)
    if given.real_kills:
        samples = Samples()
        cycles(real_job(), "real", given.real_kills, given.seed, samples)
        tell(figures, "recovery.real", samples, emulated=False)
    if given.torchrun:
        restarts = against_torchrun(given.torchrun)
        figures.add("recovery.torchrun.restarts-that-came-back", len(restarts), "count", samples=given.torchrun)
        figures.add_samples("recovery.torchrun.resume", [seconds * 1e3 for seconds in restarts], "ms")
    figures.finish(given.json)


if __name__ == "__main__":
    main()
