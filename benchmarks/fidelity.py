"""How true the estimate of a step's time is: what each plan was thought to take, beside what its steps took.

Both come from the runs' own events (plan_measured): the estimate from when the plan was taken, and the median of its
steps. One figure a plan, so before and after every recovery.

emulated: 4, 8 and 12 workers whose compute and links are the profile's times (cluster.device = "emulated"), under every
schedule, with even and uneven layers, slow links, stages of several devices, and kills. What votes and commits cost on
this machine is measured first, with as many workers, and put into the profile.
real: 2 workers that compute, a small GPT-2, as one pipeline of two stages and as two of one; the profile is measured by
the same run.
"""

from __future__ import annotations

import argparse
import resource
import secrets
import shutil
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from figures import SCRATCH, note, report
from interleave import QUIET
from interleave import _machine_s as machine_s
from sides import make_job, planaria_side, run_to_end

from planaria.job.settings import Job
from planaria.plan.costs.model_profile import (
    DeviceKind,
    LayerCost,
    LayerTimes,
    LinkCost,
    Links,
    ModelProfile,
    StepCosts,
)
from planaria.plan.plan import Group
from planaria.plan.schedule_kind import ScheduleKind
from planaria.protocol.messages.records import PlanMeasured, PlanTaken
from planaria.runtime.run_folder.recorder import read_events

MEAN, WORST = 0.05, 0.08
STEPS_BETWEEN = 6
"""Steps of a plan before the next kill."""
MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Plan:
    """One plan of a run."""

    estimated_s: float
    measured_s: float
    steps: int
    workers: int
    pipelines: int

    @property
    def error(self) -> float:
        return self.estimated_s / self.measured_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job on emulated devices.

    Attributes:
        name: for people.
        nodes: that it starts on.
        kills: nodes that die, one after the other.
        layers: forwards' milliseconds on one device, layer by layer.
        link_ms: of a message between nodes.
        devices: numbers of devices of a stage that the profile has times for.
        alone: on one device everything takes so many times as long again, so that stages have more.
        overrides: of the job file.
    """

    name: str
    nodes: int
    kills: Sequence[int] = ()
    layers: Sequence[float]
    link_ms: float = 1.0
    devices: Sequence[int] = (1,)
    alone: float = 1.0
    overrides: Sequence[str] = ()


EVEN = (5.0,) * 12
UNEVEN = (2.0, 5.0, 5.0, 5.0, 8.0, 5.0, 5.0, 3.0, 5.0, 5.0, 5.0, 9.0)


def cases() -> Iterator[Case]:
    for schedule in ScheduleKind:
        order = f"cluster.schedule={schedule.value}"
        yield Case(name=f"4 nodes, {schedule.value}", nodes=4, layers=EVEN, overrides=[order, *f_n0(0, 4)])
        yield Case(
            name=f"8 nodes, {schedule.value}, uneven, 2 kills",
            nodes=8,
            kills=(2, 5),
            layers=UNEVEN,
            overrides=[order, *f_n0(1, 3)],
        )
    yield Case(name="4 nodes, slow link", nodes=4, layers=EVEN, link_ms=6.0, overrides=f_n0(0, 4))
    yield Case(name="8 nodes, slow link, kill", nodes=8, kills=(7,), layers=UNEVEN, link_ms=6.0, overrides=f_n0(1, 3))
    yield Case(name="12 nodes, 2 kills", nodes=12, kills=(3, 10), layers=EVEN, overrides=f_n0(2, 3))
    yield Case(name="12 nodes, uneven, 3 kills", nodes=12, kills=(0, 4, 8), layers=UNEVEN, overrides=f_n0(1, 4))
    for nodes, pipeline, share in ((4, 2, 0.2), (8, 4, 0.05)):
        yield Case(
            name=f"{nodes} nodes, {share:.0%} audited",
            nodes=nodes,
            layers=[4 * ms for ms in EVEN],
            overrides=[f"resilience.audit={share}", *f_n0(1, pipeline)],
        )
    for per_node, devices, alone in ((4, (1, 2, 4), 1.0), (4, (1, 4), 10.0), (8, (1, 2, 4, 8), 1.0), (8, (1, 8), 10.0)):
        counts = "/".join(str(count) for count in devices if count > 1 or alone == 1)
        yield Case(
            name=f"3 nodes of {per_node}, stages of {counts}, uneven, kill",
            nodes=3,
            kills=(1,),
            layers=[8 * ms for ms in UNEVEN],
            devices=devices,
            alone=alone,
            overrides=[*f_n0(1, 1), f"cluster.devices_per_node={per_node}"],
        )
    yield Case(
        name="4 nodes of 8, two stages of 8 a pipeline, uneven",
        nodes=4,
        layers=[8 * ms for ms in UNEVEN],
        devices=(1, 8),
        alone=10.0,
        overrides=[*f_n0(1, 2), "cluster.devices_per_node=8"],
    )
    yield Case(
        name="6 nodes of 2, uneven, kill",
        nodes=6,
        kills=(1,),
        layers=UNEVEN,
        overrides=[*f_n0(1, 2), "cluster.devices_per_node=2"],
    )


def f_n0(fault_tolerance: int, nodes: int) -> list[str]:
    return [f"resilience.fault_tolerance={fault_tolerance}", f"resilience.min_nodes_per_pipeline={nodes}"]


def profile_of(case: Case, vote_s: float) -> ModelProfile:
    """Backwards take twice as long as forwards; 4 MB of parameters a layer, and the ends share a group."""
    layers = tuple(
        LayerCost(
            name=f"layer.{n}",
            times=tuple(
                LayerTimes(
                    num_devices=count,
                    forward_s=(seconds := ms * 1e-3 / count**0.9 * (case.alone if count == 1 else 1.0)),
                    backward_input_s=seconds,
                    backward_weight_s=seconds,
                )
                for count in case.devices
            ),
            parameter_bytes=4 * MB,
            gradient_bytes=8 * MB,
            optimizer_bytes=8 * MB,
            activation_bytes=MB,
            recompute_activation_bytes=MB,
            output_bytes=MB,
        )
        for n, ms in enumerate(case.layers)
    )
    ends = (0, len(layers) - 1)
    groups = [Group(layers=(n,), size_bytes=3 * MB if n in ends else 4 * MB) for n in range(len(layers))]
    between = LinkCost(latency_s=1e-4, bandwidth_bytes_per_s=MB / (case.link_ms * 1e-3 - 1e-4))
    return ModelProfile(
        name=case.name,
        layers=layers,
        groups=(*groups, Group(layers=ends, size_bytes=MB)),
        links=Links(within_node=LinkCost(latency_s=1e-5, bandwidth_bytes_per_s=10e9), between_nodes=between),
        device=DeviceKind(name="made up"),
        step=StepCosts(vote_s=vote_s, apply_s_per_byte=2e-10, sum_s_per_byte=1e-10),
    )


def emulated_job(case: Case, vote_s: float) -> tuple[Job, list[str]]:
    """The job, and the kills."""
    path = SCRATCH / f"profile-{secrets.token_hex(4)}.json"
    path.write_bytes(msgspec.json.encode(profile_of(case, vote_s)))
    steps = STEPS_BETWEEN * (len(case.kills) + 1)
    text = f"""
[train]
steps = {steps}
global_batch = 24
microbatch = 1
sequence_length = 1
[cluster]
nodes = {case.nodes}
device = "emulated"
profile = "{path}"
[resilience]
policy = "templates"
"""
    faults = [f"kill:node={node},step={STEPS_BETWEEN * (at + 1)},at=backward" for at, node in enumerate(case.kills)]
    return make_job(text, *case.overrides), faults


REAL = """
[model]
type = "gpt2"
config = { n_layer = 6, n_embd = 256, n_head = 4, n_positions = 64, tie_word_embeddings = true }
[data]
source = "python-stdlib"
[train]
steps = 16
global_batch = 32
microbatch = 4
sequence_length = 64
[cluster]
nodes = 2
[resilience]
policy = "templates"
"""


def run(name: str, job: Job, faults: Sequence[str], attempts: int) -> list[Plan]:
    """The plans of the quietest of some runs: others on the machine spoil what is measured, not what is estimated."""
    best: tuple[float, list[Plan]] | None = None
    for _ in range(attempts):
        side = planaria_side("fidelity", job, faults)
        before, (busy, whole) = _own_s(), machine_s()
        run_to_end(side, 300)
        busy_after, whole_after = machine_s()
        foreign = max(0.0, busy_after - busy - (_own_s() - before)) / (whole_after - whole)
        plans = list(_plans(side.log))
        shutil.rmtree(side.log.parent)
        if best is None or foreign < best[0]:
            best = foreign, plans
        if foreign <= QUIET:
            break
    assert best is not None
    share, plans = best
    disturbed = f"; others took {share:.0%} of the machine" if share > QUIET else ""
    for plan in plans:
        note(
            f"{name}: {plan.workers} workers, estimated {plan.estimated_s * 1e3:.1f} ms, {plan.steps} steps of "
            f"{plan.measured_s * 1e3:.1f} ms, {plan.error:+.1%}{disturbed}"
        )
    return plans


def _plans(events: Path) -> Iterator[Plan]:
    sizes: dict[int, tuple[int, int]] = {}
    for record, _ in read_events(events):
        match record:
            case PlanTaken():
                workers = {stage[0] for stages in record.pipelines for stage in stages}
                sizes[record.generation] = len(workers), len(record.pipelines)
            case PlanMeasured():
                yield Plan(record.estimated_step_s, record.measured_step_s, record.steps, *sizes[record.generation])
            case _:
                pass


def _own_s() -> float:
    """CPU seconds of this process and of all that descended from it and ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def measure_vote_s(nodes: int, attempts: int, stages: int = 1) -> float:
    """What a step takes beyond its compute with so many workers, in pipelines of so many, with a microbatch a worker.

    Where each is a pipeline of its own, all of them sum all layers at the same moment, which on few cores takes longer
    than votes do: what is measured is then to be held against steps of such pipelines alone.
    """
    layers = (50.0, 50.0) if stages == 1 else EVEN
    pipelines = nodes // stages
    case = Case(
        name=f"votes of {nodes}",
        nodes=nodes,
        layers=layers,
        overrides=[*f_n0(pipelines - 1, stages), f"train.global_batch={nodes}", f"train.steps={2 * STEPS_BETWEEN}"],
    )
    job, _ = emulated_job(case, 0.0)
    (plan,) = run(case.name, job, (), attempts)
    return max(0.0, plan.measured_s - plan.estimated_s)


def summarise(kind: str, plans: Sequence[Plan]) -> None:
    errors = [abs(plan.error) for plan in plans]
    report(f"fidelity.{kind}.plans", len(errors), "count")
    report(f"fidelity.{kind}.error-mean", statistics.mean(errors), "ratio", goal=f"<= {MEAN}")
    report(f"fidelity.{kind}.error-worst", max(errors), "ratio", goal=f"<= {WORST}")
    report(f"fidelity.{kind}.bias", statistics.mean(plan.error for plan in plans), "ratio")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attempts", type=int, default=3, help="runs of a case until one is quiet (%(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of the real job (%(default)s)")
    parser.add_argument("--only", choices=("emulated", "real"), help="one part alone")
    parser.add_argument("--case", default="", help="emulated cases whose name has this in it")
    arguments = parser.parse_args()
    SCRATCH.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    if arguments.only != "real":
        wanted = [case for case in cases() if arguments.case in case.name]
        counts = sorted({case.nodes for case in wanted})
        vote_s = {count: measure_vote_s(count, arguments.attempts) for count in counts}
        plans = []
        for case in wanted:
            job, faults = emulated_job(case, vote_s[case.nodes])
            plans += run(case.name, job, faults, arguments.attempts)
        summarise("emulated", plans)
    if arguments.only != "emulated":
        plans = []
        for name, overrides in (("two stages", f_n0(0, 2)), ("two pipelines", f_n0(1, 1))):
            for _ in range(arguments.repeats):
                plans += run(f"real, {name}", make_job(REAL, *overrides), (), arguments.attempts)
        summarise("real", plans)
    note(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
