"""Five scripts of failures on 16 emulated workers for real, and the same in the simulator: samples a second beside each
other, and how many recoveries of which kind.

Every script strikes the same nodes at the same seconds under each policy. The real side runs here; the simulator's side
is a file of the same form (`--simulated FILE`), or nothing: then only what was measured is printed and written
(`--json FILE`). Takes three minutes a policy; the machine should be idle.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
from fidelity import EVEN, Case, f_n0, measure_vote_s, profile_of
from figures import SCRATCH, note, report
from sides import make_job

from planaria.job.parse import EMULATED_MODEL
from planaria.job.settings import Job, PolicyName
from planaria.launch.local import LocalNodes
from planaria.launch.rehearsal import rehearse, rehearsed_job, script_for
from planaria.observe.run_folder import RunFolder
from planaria.plan.profile import ModelProfile
from planaria.protocol.records import RunStatus
from planaria.simulate.script_format import write_script
from planaria.simulate.scripts import Script, ScriptName
from planaria.simulate.tally import Tally

NODES, STAGES, MICROBATCHES = 16, 4, 16
LINK_MS = 1.0
"""Of a message of 1 MB; the state of a layer, 12 MB, takes eleven times as long."""
MOST_OFF = 0.05


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One script under one policy, on either side."""

    script: str
    policy: str
    samples_per_s: float
    recoveries: dict[str, int]
    unplanned_losses: int = 0


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


def measure(setting: Setting, script: Script, policy: PolicyName) -> Outcome:
    """One run on real processes."""
    replace = msgspec.structs.replace
    job = replace(setting.job, resilience=replace(setting.job.resilience, policy=policy))
    with tempfile.TemporaryDirectory(dir=SCRATCH) as scratch:
        profile = Path(scratch) / "profile.json"
        profile.write_bytes(msgspec.json.encode(setting.profile))
        folder = RunFolder.create(scratch, "run")
        with LocalNodes(folder.logs / "launcher.log", EMULATED_MODEL) as nodes:
            ended = rehearse(rehearsed_job(job, profile, script), folder, script, nodes)
    if ended.status is RunStatus.INTERRUPTED and not ended.is_played:
        raise KeyboardInterrupt
    if ended.tally is None:
        raise SystemExit(f"{script.name}, {policy.value}: {ended.status.value}: {ended.message}")
    return outcome_of(script, policy, ended.tally, ended.unplanned_losses)


def outcome_of(script: Script, policy: PolicyName, tally: Tally, unplanned_losses: int = 0) -> Outcome:
    return Outcome(
        script=script.name,
        policy=policy.value,
        samples_per_s=tally.samples_per_s,
        recoveries=tally.recoveries,
        unplanned_losses=unplanned_losses,
    )


def compare(measured: Sequence[Outcome], simulated: Sequence[Outcome]) -> None:
    """Report how far the simulator is off, case by case; `simulated` may have some of the cases."""
    by_case = {(outcome.script, outcome.policy): outcome for outcome in simulated}
    for real in measured:
        made_up = by_case.get((real.script, real.policy))
        if made_up is None:
            continue
        name = f"fidelity-scripts.{real.script}.{real.policy}"
        off = made_up.samples_per_s / real.samples_per_s - 1
        report(f"{name}.off", off, "ratio", goal=f"<= {MOST_OFF}", ok=abs(off) <= MOST_OFF)
        same = made_up.recoveries == real.recoveries
        report(f"{name}.same-recoveries", float(same), "count", goal=">= 1")
        if not same:
            note(f"{name}: recoveries {real.recoveries} for real, {made_up.recoveries} simulated")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--script", type=ScriptName, choices=list(ScriptName), help="one alone")
    parser.add_argument("--policy", type=PolicyName, choices=list(PolicyName), help="one alone")
    parser.add_argument("--attempts", type=int, default=1, help="runs of each; the fastest counts (%(default)s)")
    parser.add_argument("--scripts", type=Path, metavar="FOLDER", help="write the scripts there as traces, and end")
    parser.add_argument("--json", type=Path, help="write setting and outcomes here")
    parser.add_argument("--simulated", type=Path, help="JSON list of the simulator's outcomes, to be compared with")
    given = parser.parse_args()
    SCRATCH.mkdir(parents=True, exist_ok=True)
    setting = setting_of(measure_vote_s(NODES, 3), [given.script] if given.script else list(ScriptName))
    if given.scripts is not None:
        given.scripts.mkdir(parents=True, exist_ok=True)
        for script in setting.scripts:
            (given.scripts / f"{script.name}.jsonl").write_text(write_script(script))
        return
    outcomes = []
    for script in setting.scripts:
        for policy in [given.policy] if given.policy else list(PolicyName):
            runs = [measure(setting, script, policy) for _ in range(given.attempts)]
            quiet = [run for run in runs if not run.unplanned_losses] or runs
            outcomes.append(max(quiet, key=lambda run: run.samples_per_s))
            report(f"fidelity-scripts.{script.name}.{policy.value}", outcomes[-1].samples_per_s, "samples/s")
            note(f"{script.name}, {policy.value}: {outcomes[-1].recoveries}")
    if given.json is not None:
        given.json.write_bytes(msgspec.json.encode(Measured(setting=setting, outcomes=tuple(outcomes))))
    if given.simulated is not None:
        compare(outcomes, msgspec.json.decode(given.simulated.read_bytes(), type=list[Outcome]))


if __name__ == "__main__":
    sys.exit(main())
