"""Five scripts of failures on 16 emulated workers for real, and the same in the simulator: samples a second beside each
other, and how many recoveries of which kind.

Every script strikes the same nodes at the same seconds under each policy. Both sides run here, and a table has them
with the simulator's errors. What was measured is written by `--json FILE`, and simulated again by `--measured FILE`.
Takes a minute and a half a policy, ten for all; the machine should be idle.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
from fidelity import EVEN, Case, f_n0, measure_vote_s, profile_of
from figures import SCRATCH, note, report
from sides import make_job

from planaria.job.parse import EMULATED_MODEL
from planaria.job.registry import PolicyName
from planaria.job.settings import Job
from planaria.plan.costs.model_profile import ModelProfile
from planaria.protocol.messages.records import NodeJoined, NodeLost, RunStatus
from planaria.runtime.component_settings import planner_settings
from planaria.runtime.launch.rehearsal.rehearsal import rehearse, rehearsed_job, script_for
from planaria.runtime.nodes.local_nodes import LocalNodes
from planaria.runtime.run_folder.recorder import read_events
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.simulate.experiment import Experiment
from planaria.simulate.timings import Timings, calibrated
from planaria.simulate.traces.script_format import write_script
from planaria.simulate.traces.scripts import Script, ScriptName
from planaria.simulate.traces.tally import WARM_UP_STEPS, begin_of
from planaria.simulate.traces.trace import Change

NODES, STAGES, MICROBATCHES = 16, 4, 16
CHECKPOINT_EVERY = WARM_UP_STEPS
"""Under morph, which goes back to the last one; the others write none. So there is one when a script begins, as in the
simulator."""
LINK_MS = 1.0
"""Of a message of 1 MB; the state of a layer, 12 MB, takes eleven times as long."""
MOST_OFF = 0.05
PARTS = 50
"""Into which the simulator divides a step: a node is lost in the middle of one of them."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One script under one policy, on either side."""

    script: str
    policy: str
    samples_per_s: float
    recoveries: dict[str, int]
    unplanned_losses: int = 0
    timings: dict[str, float] = {}
    """What the run took of the times that are not modelled, by the names of `Timings`."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """All that the simulator must be given to do the same."""

    profile: ModelProfile
    job: Job
    scripts: tuple[Script, ...]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` writes."""

    setting: Setting
    outcomes: tuple[Outcome, ...]


def setting_of(vote_s: float, names: Sequence[ScriptName]) -> Setting:
    profile = profile_of(Case(name="scripts", nodes=NODES, layers=EVEN, link_ms=LINK_MS), vote_s)
    text = f"""
[train]
steps = 1
global_batch = {MICROBATCHES}
microbatch = 1
sequence_length = 1
[cluster]
nodes = {NODES}
schedule = "1f1b"
device = "emulated"
profile = "profile.json"
[resilience]
mean_time_between_failures_s = 30
"""
    job = make_job(text, *f_n0(1, STAGES))
    return Setting(profile=profile, job=job, scripts=tuple(script_for(name, job, profile) for name in names))


def job_under(job: Job, policy: PolicyName) -> Job:
    """The job under another policy."""
    replace = msgspec.structs.replace
    every = CHECKPOINT_EVERY if policy is PolicyName.MORPH else job.run.checkpoint_every
    return replace(job, resilience=replace(job.resilience, policy=policy), run=replace(job.run, checkpoint_every=every))


def measure(setting: Setting, script: Script, policy: PolicyName) -> Outcome:
    """One run on real processes."""
    job = job_under(setting.job, policy)
    with tempfile.TemporaryDirectory(dir=SCRATCH) as scratch:
        profile = Path(scratch) / "profile.json"
        profile.write_bytes(msgspec.json.encode(setting.profile))
        folder = RunFolder.create(scratch, "run")
        with LocalNodes(folder.logs / "launcher.log", EMULATED_MODEL) as nodes:
            ended = rehearse(rehearsed_job(job, profile, script), folder, script, nodes)
        timings = timings_of(folder, script, job.cluster.storage_gb_per_s * 1e9)
    if ended.status is RunStatus.INTERRUPTED and not ended.is_played:
        raise KeyboardInterrupt
    if ended.tally is None:
        raise SystemExit(f"{script.name}, {policy.value}: {ended.status.value}: {ended.message}")
    return Outcome(
        script=script.name,
        policy=policy.value,
        samples_per_s=ended.tally.samples_per_s,
        recoveries=ended.tally.recoveries,
        unplanned_losses=ended.unplanned_losses,
        timings=timings,
    )


def timings_of(folder: RunFolder, script: Script, storage_bytes_per_s: float) -> dict[str, float]:
    """What `planaria simulate --calibrate` finds in the run; and, from when the script struck or started a node, how
    long that took to be known, and the node to join. Reading a checkpoint is modelled, and what a restore takes beside
    that is about what a change of plans does: processes live on."""
    events = [msgspec.json.decode(line) for line in folder.events.read_bytes().splitlines()]
    found, _ = calibrated(events, {})
    found["storage_bytes_per_s"] = storage_bytes_per_s
    found["restart_s"] = 0.0
    told = list(read_events(folder.events))
    began_s = begin_of(told)
    gone = [event.at_s for event in script.trace.events if event.change is Change.REMOVE]
    lost = [time_s for record, time_s in told if isinstance(record, NodeLost)]
    if began_s is not None and len(gone) == len(lost):
        found["detection_s"] = statistics.median(
            max(0.0, time_s - began_s - at_s) for time_s, at_s in zip(lost, gone, strict=True)
        )
    came = [event.at_s for event in script.trace.events if event.change is Change.ADD and event.at_s > 0]
    joined = [time_s for record, time_s in told if isinstance(record, NodeJoined)][len(script.trace.initial) :]
    if began_s is not None and came and len(came) == len(joined):
        found["start_s"] = statistics.median(time_s - began_s - at_s for time_s, at_s in zip(joined, came, strict=True))
    return found


def simulate(setting: Setting, measured: Sequence[Outcome]) -> list[Outcome]:
    """The same in the simulator: with the profile, and with the times that it does not model as the runs took them,
    the median over all runs of the policy."""
    scripts = {script.name: script for script in setting.scripts}
    found: list[Outcome] = []
    for policy in dict.fromkeys(outcome.policy for outcome in measured):
        of_policy = [outcome for outcome in measured if outcome.policy == policy]
        timings = median_timings(of_policy)
        job = job_under(setting.job, PolicyName(policy))
        experiment = Experiment(
            profile=setting.profile,
            settings=planner_settings(setting.job, setting.profile),
            checkpoint_every=job.run.checkpoint_every,
            mean_time_between_failures_s=setting.job.resilience.mean_time_between_failures_s,
            timings=timings,
            num_parts=PARTS,
            by_number=True,
            begins_trained=True,
        )
        for outcome in of_policy:
            run = experiment.runner(policy).run(scripts[outcome.script].trace)
            found.append(
                Outcome(
                    script=outcome.script,
                    policy=policy,
                    samples_per_s=run.samples_per_s,
                    recoveries=run.survived,
                    timings=msgspec.structs.asdict(timings),
                )
            )
    return found


def median_timings(outcomes: Sequence[Outcome]) -> Timings:
    """Of several runs; what none tells of is the default's."""
    values: dict[str, list[float]] = {}
    for outcome in outcomes:
        for name, value in outcome.timings.items():
            values.setdefault(name, []).append(value)
    return Timings(**{name: statistics.median(each) for name, each in values.items()})


def compare(measured: Sequence[Outcome], simulated: Sequence[Outcome]) -> None:
    """Report how far the simulator is off, case by case; `simulated` may have some of the cases."""
    by_case = {(outcome.script, outcome.policy): outcome for outcome in simulated}
    note(
        f"{'policy':<11} {'script':<18} {'real':>8} {'simulated':>10} {'off':>7}  recoveries: real; simulated if others"
    )
    for real in measured:
        made_up = by_case.get((real.script, real.policy))
        if made_up is None:
            continue
        name = f"fidelity-scripts.{real.script}.{real.policy}"
        off = made_up.samples_per_s / real.samples_per_s - 1
        report(f"{name}.off", off, "ratio", goal=f"<= {MOST_OFF}", ok=abs(off) <= MOST_OFF)
        same = made_up.recoveries == real.recoveries
        report(f"{name}.same-recoveries", float(same), "count", goal=">= 1")
        note(
            f"{real.policy:<11} {real.script:<18} {real.samples_per_s:8.2f} {made_up.samples_per_s:10.2f} {off:+7.1%}  "
            f"{real.recoveries}{'' if same else f'; {made_up.recoveries}'}"
            f"{f' ({real.unplanned_losses} unplanned losses)' if real.unplanned_losses else ''}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--script", type=ScriptName, choices=list(ScriptName), help="one alone")
    parser.add_argument("--policy", type=PolicyName, choices=list(PolicyName), action="append", help="some alone")
    parser.add_argument("--attempts", type=int, default=1, help="runs of each; the fastest counts (%(default)s)")
    parser.add_argument("--scripts", type=Path, metavar="FOLDER", help="write the scripts there as traces, and end")
    parser.add_argument("--json", type=Path, help="write setting and outcomes here")
    parser.add_argument("--measured", type=Path, help="simulate for what `--json` wrote, and measure nothing")
    given = parser.parse_args()
    if given.measured is not None:
        before = msgspec.json.decode(given.measured.read_bytes(), type=Measured)
        compare(before.outcomes, simulate(before.setting, before.outcomes))
        return
    SCRATCH.mkdir(parents=True, exist_ok=True)
    setting = setting_of(measure_vote_s(NODES, 3, STAGES), [given.script] if given.script else list(ScriptName))
    if given.scripts is not None:
        given.scripts.mkdir(parents=True, exist_ok=True)
        for script in setting.scripts:
            (given.scripts / f"{script.name}.jsonl").write_text(write_script(script))
        return
    outcomes: list[Outcome] = []
    for policy in given.policy or list(PolicyName):
        for script in setting.scripts:
            runs = [measure(setting, script, policy) for _ in range(given.attempts)]
            quiet = [run for run in runs if not run.unplanned_losses] or runs
            outcomes.append(max(quiet, key=lambda run: run.samples_per_s))
            report(f"fidelity-scripts.{script.name}.{policy.value}", outcomes[-1].samples_per_s, "samples/s")
            note(f"{script.name}, {policy.value}: {outcomes[-1].recoveries}")
            if given.json is not None:
                given.json.write_bytes(msgspec.json.encode(Measured(setting=setting, outcomes=tuple(outcomes))))
    compare(outcomes, simulate(setting, outcomes))


if __name__ == "__main__":
    sys.exit(main())
