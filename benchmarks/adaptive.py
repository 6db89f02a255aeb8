"""The adaptive policy beside each policy alone: 16 workers on emulated devices, five scripts of failures.

Samples a second that count (`drop` leaves some out, which are no samples here) over each script, from the third step's
commit to the last one's; the goal is as many as the best policy alone, in each script. And the adaptive policy's
estimates of steps and transitions (of all runs together) beside what was measured, and how long its decisions took.
Takes some eight minutes; the machine should be idle. Under `morph` a checkpoint is written every third step.

--virtual: the same scripts with simulated workers in virtual time, where decisions and the machine take none: what the
plans alone are worth, the same every time, on whatever machine. Two minutes.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from fidelity import EVEN, Case, f_n0, measure_vote_s, profile_of
from figures import SCRATCH, note, report
from sides import ENVIRONMENT, make_job, planaria_side

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.testkit.cluster.cluster import Cluster
from tests.testkit.schedules.faults import Fault, FaultKind
from tests.testkit.schedules.schedule import Schedule
from tests.testkit.schedules.setup import Setup
from tests.testkit.schedules.weather import Weather

from planaria.api import plan_for
from planaria.job.errors import UserError
from planaria.job.registry import PolicyName
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.plan import Plan, ScheduleKind
from planaria.plan.settings import PlannerSettings
from planaria.protocol.messages.records import AnyRecord, PlanMeasured, PlanTaken, StepCommitted
from planaria.protocol.messages.user import Wish
from planaria.runtime.coordinator.client import ask
from planaria.runtime.run_folder.recorder import read_events
from planaria.runtime.run_folder.run_folder import RunFolder

NODES, STAGES, MICROBATCHES = 16, 4, 16
LINK_MS = 1.0
"""Of a message of 1 MB; the state of a layer, 12 MB, takes eleven times as long."""
POLICIES = tuple(PolicyName)
CHECKPOINT_EVERY = 3
"""Steps, under `morph`."""
BEGIN = 3
"""Steps that do not count: the first are slow."""
MOST_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What happens.

    Attributes:
        steps: of the job.
        losses: in which step which places (pipeline and stage of the first plan) are lost.
        joins: after which step how many nodes are added.
    """

    steps: int
    losses: dict[int, list[tuple[int, int]]]
    joins: dict[int, int] = field(default_factory=dict)


SCRIPTS = {
    "single": Script(steps=24, losses={6: [(1, 1)]}),
    "burst-in-one-stage": Script(steps=24, losses={6: [(0, 1), (1, 1)]}),
    "burst-in-one-pipeline": Script(steps=24, losses={6: [(1, 1), (1, 2)]}),
    "steady-loss-of-half": Script(
        steps=38,
        losses={
            2 + 4 * at: [place]
            for at, place in enumerate([(0, 0), (2, 1), (1, 2), (3, 3), (2, 0), (1, 1), (0, 3), (3, 2)], 1)
        },
    ),
    "loss-and-rejoin": Script(steps=28, losses={6: [(2, 1)]}, joins={14: 1}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Of one run."""

    policy: PolicyName
    samples_per_s: float
    steps: list[tuple[float, float]]
    """Estimated and measured seconds of a step of each plan."""
    transitions: list[tuple[float, float]]
    changes: list[float]
    """Measured transitions of plans for which nothing moved."""
    choices: list[str]
    decisions_s: list[float] = field(default_factory=list)
    """Of plans that were weighed."""


def first_plan(profile: ModelProfile) -> Plan:
    settings = PlannerSettings(
        num_microbatches=MICROBATCHES, fault_tolerance=1, num_nodes=NODES, devices_per_node=1, min_nodes=STAGES
    )
    return plan_for(profile, settings, policy=PolicyName.TEMPLATES).plan


def checkpoint_every(policy: PolicyName) -> int:
    return CHECKPOINT_EVERY if policy is PolicyName.MORPH else 0


def run(profile: ModelProfile, script: Script, policy: PolicyName, mean_time_s: float) -> Result:
    plan = first_plan(profile)
    path = SCRATCH / f"profile-{secrets.token_hex(4)}.json"
    path.write_bytes(msgspec.json.encode(profile))
    text = f"""
[train]
steps = {script.steps}
global_batch = {MICROBATCHES}
microbatch = 1
sequence_length = 1
[cluster]
nodes = {NODES}
schedule = "1f1b"
device = "emulated"
profile = "{path}"
[resilience]
policy = "{policy.value}"
mean_time_between_failures_s = {mean_time_s}
[run]
checkpoint_every = {checkpoint_every(policy)}
"""
    faults = []
    for step, places in script.losses.items():
        for pipeline, stage in places:
            stages = plan.pipelines[pipeline % len(plan.pipelines)].stages
            faults.append(f"kill:node={stages[stage % len(stages)].worker},step={step},at=backward")
    side = planaria_side(f"adaptive-{policy.value}", make_job(text, *f_n0(1, STAGES)), faults)
    contact = RunFolder(side.log.parent).contact
    pending = sorted(script.joins.items())
    deadline = time.monotonic() + MOST_S
    with side.output.open("wb") as output:
        process = subprocess.Popen(side.commands[0][0], stdout=output, stderr=output, env=ENVIRONMENT)
        while process.poll() is None:
            if time.monotonic() > deadline:
                process.kill()
                raise SystemExit(f"took more than {MOST_S:.0f} s, see {side.output}")
            if pending and side.log.exists() and last_step(read_events(side.log)) >= pending[0][0]:
                try:
                    ask(contact, Wish.ADD, count=pending.pop(0)[1])
                except UserError as error:
                    note(f"no node was added: {error}")
            time.sleep(0.05)
    if process.returncode:
        raise SystemExit(f"failed, see {side.output}")
    result = result_of(policy, list(read_events(side.log)))
    shutil.rmtree(side.log.parent)
    path.unlink()
    return result


def last_step(events: Sequence[tuple[AnyRecord, float]] | Iterator[tuple[AnyRecord, float]]) -> int:
    return max((record.step for record, _ in events if isinstance(record, StepCommitted)), default=0)


def samples(scales: dict[int, float]) -> float:
    """That count, of the steps that count, each with the share of its microbatches."""
    return MICROBATCHES * sum(scale for step, scale in scales.items() if step > BEGIN)


def result_of(policy: PolicyName, events: Sequence[tuple[AnyRecord, float]]) -> Result:
    times = {record.step: at for record, at in events if isinstance(record, StepCommitted)}
    counted = {record.step: record.scale for record, _ in events if isinstance(record, StepCommitted)}
    last = max(times)
    taken = {record.generation: record for record, _ in events if isinstance(record, PlanTaken)}
    steps, transitions, changes, decisions = [], [], [], []
    for record, _ in events:
        if not isinstance(record, PlanMeasured) or record.generation not in taken:
            continue
        plan = taken[record.generation]
        if plan.purpose == "reconfigure":
            steps.append((record.estimated_step_s, record.measured_step_s))
            if plan.candidates:
                decisions.append(record.decision_s)
            if record.measured_transition_s is not None:
                if not plan.transfer_bytes:
                    changes.append(record.measured_transition_s)
                if record.estimated_transition_s is not None:
                    transitions.append((record.estimated_transition_s, record.measured_transition_s))
    return Result(
        policy=policy,
        samples_per_s=samples(counted) / (times[last] - times[BEGIN]),
        steps=steps,
        transitions=transitions,
        changes=changes,
        decisions_s=decisions,
        choices=[plan.candidates[0].name for plan in taken.values() if plan.candidates],
    )


# In virtual time


class GivenSetup(Setup, frozen=True, kw_only=True):
    """A simulated job of a profile that is given."""

    given: ModelProfile

    @property
    def profile(self) -> ModelProfile:
        return self.given


class Watched(Cluster):
    """A simulated cluster that keeps when each step was committed, and what was chosen."""

    def __init__(self, schedule: Schedule) -> None:
        self.committed: dict[int, float] = {}
        self.scales: dict[int, float] = {}
        self.choices: list[str] = []
        super().__init__(schedule)

    def publish(self, record: AnyRecord, *, again: bool) -> None:
        if isinstance(record, StepCommitted):
            self.committed[record.step] = self.clock.now
            self.scales[record.step] = record.scale
        if isinstance(record, PlanTaken) and record.candidates:
            self.choices.append(record.candidates[0].name)
        super().publish(record, again=again)


def simulated(profile: ModelProfile, script: Script, policy: PolicyName, at_s: float) -> Result:
    """Nodes are lost so long after the step began."""
    plan = first_plan(profile)
    faults = []
    for step, places in script.losses.items():
        for pipeline, stage in places:
            stages = plan.pipelines[pipeline % len(plan.pipelines)].stages
            node = stages[stage % len(stages)].worker
            faults.append(Fault(kind=FaultKind.KILL, nodes=(node,), at="JournalCommit", nth=step - 1, delay_s=at_s))
    for step, number in script.joins.items():
        faults += [Fault(kind=FaultKind.JOIN, at="JournalCommit", nth=step)] * number
    setup = GivenSetup(
        num_layers=profile.num_layers, is_tied=True, is_large=False, num_nodes=NODES, devices_per_node=1,
        fault_tolerance=1, min_nodes=STAGES, num_microbatches=MICROBATCHES, steps=script.steps,
        checkpoint_every=checkpoint_every(policy),
        order=ScheduleKind.ONE_F_ONE_B, waits=False, policy=policy, given=profile,
    )  # fmt: skip
    weather = Weather(
        compute_s=1e-4, network_s=LINK_MS * 1e-3, control_s=2e-3, detect_s=3e-3, spread=2.0, is_as_profiled=True
    )
    cluster = Watched(Schedule(seed=1, setup=setup, weather=weather, faults=tuple(faults)))
    cluster.run()
    last = max(cluster.committed)
    samples_per_s = samples(cluster.scales) / (cluster.committed[last] - cluster.committed[BEGIN])
    return Result(
        policy=policy, samples_per_s=samples_per_s, steps=[], transitions=[], changes=[], choices=cluster.choices
    )


def compare_simulated(profile: ModelProfile, names: Sequence[str]) -> None:
    """Each script with losses early, in the middle and late in a step."""
    for name in names:
        sums = dict.fromkeys(POLICIES, 0.0)
        for at_s in (0.05, 0.15, 0.25):
            for policy in POLICIES:
                result = simulated(profile, SCRIPTS[name], policy, at_s)
                sums[policy] += result.samples_per_s / 3
                if policy is PolicyName.ADAPTIVE:
                    note(f"{name}, {at_s * 1e3:.0f} ms into the step: {'; '.join(result.choices)}")
        for policy, mean in sums.items():
            report(f"adaptive.virtual.{name}.{policy.value}", mean, "samples/s")
        alone = max(mean for policy, mean in sums.items() if policy is not PolicyName.ADAPTIVE)
        ratio = sums[PolicyName.ADAPTIVE] / alone
        report(f"adaptive.virtual.{name}.over-best-alone", ratio, "ratio", goal=">= 1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--script", choices=SCRIPTS, help="one alone")
    parser.add_argument(
        "--attempts", type=int, default=1, help="runs of each, of which the fastest counts (%(default)s)"
    )
    parser.add_argument(
        "--mean-time-s", type=float, default=30.0, help="between failures, as the job expects it (%(default)s)"
    )
    parser.add_argument("--virtual", action="store_true", help="simulated workers in virtual time")
    arguments = parser.parse_args()
    SCRATCH.mkdir(parents=True, exist_ok=True)
    if arguments.virtual:
        profile = profile_of(Case(name="adaptive", nodes=NODES, layers=EVEN, link_ms=LINK_MS), 0.006)
        compare_simulated(profile, list(SCRIPTS) if arguments.script is None else [arguments.script])
        return
    profile = profile_of(
        Case(name="adaptive", nodes=NODES, layers=EVEN, link_ms=LINK_MS), measure_vote_s(NODES, 3, STAGES)
    )
    results: list[Result] = []
    for name in SCRIPTS if arguments.script is None else (arguments.script,):
        by_policy: dict[PolicyName, Result] = {}
        for policy in POLICIES:
            runs = [run(profile, SCRIPTS[name], policy, arguments.mean_time_s) for _ in range(arguments.attempts)]
            results += runs
            best = by_policy[policy] = max(runs, key=lambda result: result.samples_per_s)
            report(f"adaptive.{name}.{policy.value}", best.samples_per_s, "samples/s")
        adaptive = by_policy[PolicyName.ADAPTIVE]
        for choice in adaptive.choices:
            note(f"{name}: {choice}")
        alone = max(result.samples_per_s for policy, result in by_policy.items() if policy is not PolicyName.ADAPTIVE)
        report(f"adaptive.{name}.over-best-alone", adaptive.samples_per_s / alone, "ratio", goal=">= 1")
    steps = [pair for result in results for pair in result.steps]
    for policy in POLICIES:
        own = [a / b - 1 for result in results if result.policy is policy for a, b in result.steps]
        if own:
            note(f"{policy.value}: steps estimated {statistics.mean(own):+.1%} off on average, {len(own)} plans")
    report("adaptive.step-error-mean", statistics.mean(abs(a / b - 1) for a, b in steps), "ratio", goal="<= 0.05")
    changes = [seconds for result in results for seconds in result.changes]
    if changes:
        report("adaptive.change", statistics.median(changes) * 1e3, "ms")
    decisions = [seconds for result in results for seconds in result.decisions_s]
    if decisions:
        report("adaptive.decision.median", statistics.median(decisions) * 1e3, "ms", goal="<= 10")
        ready = sum(seconds < 0.01 for seconds in decisions) / len(decisions)
        report("adaptive.decision.in-advance", ready, "ratio")
    for result in results:
        for estimated, measured in result.transitions:
            note(f"transition, {result.policy.value}: {estimated * 1e3:.1f} ms for {measured * 1e3:.1f} ms measured")
    for policy in (PolicyName.MORPH, PolicyName.ADAPTIVE):
        pairs = [pair for result in results if result.policy is policy for pair in result.transitions]
        total = sum(measured for _, measured in pairs)
        if total:
            off = abs(sum(estimated for estimated, _ in pairs) / total - 1)
            goal = "<= 0.2" if policy is PolicyName.ADAPTIVE else None
            report(f"adaptive.transition-error.{policy.value}", off, "ratio", goal=goal)


if __name__ == "__main__":
    sys.exit(main())
