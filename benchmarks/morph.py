"""Checkpoint and morph: what losses cost that take the job back to the last checkpoint, beside the estimate.

emulated: 16 workers in a grid of 4 x 4, which read checkpoints with 0.1 GB/s; six nodes die. cpu: 6 workers that train
a GPT-2 and really read their state; three die. For each: the time from the decision until every worker has its state
(load), and until the job is where it was (transition), against the estimates; and the time of the whole run by cause,
as in Bamboo's Figure 3. On the CPU the first load is estimated with what the job file says, and is no figure of merit;
and as workers share its cores, the steps that are trained again are estimated with the run's median step. Takes about
two minutes; the machine should be idle.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from fidelity import EVEN, Case, f_n0, measure_vote_s, profile_of
from figures import SCRATCH, note, report
from sides import make_job, planaria_side, run_to_end

from planaria.job.sections.cluster import Device
from planaria.job.settings import Job
from planaria.plan.thresholds import CHANGE_S
from planaria.protocol.messages.records import AnyRecord, NodeLost, PlanTaken, Recovered, Restored, StepCommitted
from planaria.protocol.step.time_accounting import Split, TimeAccount
from planaria.runtime.run_folder.recorder import read_events

MOST_S = 300.0


@dataclass(slots=True, kw_only=True)
class Restore:
    """One, from the decision on. Seconds; None where a further loss came in between.

    Attributes:
        steps: that were trained again.
        estimated_load_s: until all have their state.
        estimated_s: until the job is where it was.
        measured_load_s: likewise.
        measured_s: likewise.
    """

    steps: int
    estimated_load_s: float
    estimated_s: float
    measured_load_s: float | None = None
    measured_s: float | None = None


@dataclass(slots=True, kw_only=True)
class Run:
    """What came of a job."""

    split: Split
    restores: list[Restore] = field(default_factory=list)


def read(events: Sequence[tuple[AnyRecord, float]], *, is_oversubscribed: bool) -> Run:
    """The restores of a run, and its time. Where it is oversubscribed, its own steps count, not the estimated ones."""
    run = Run(split=TimeAccount(events).split)
    usual_s = statistics.median(record.duration_s for record, _ in events if isinstance(record, StepCommitted))
    fault_at, decided_at, goal = 0.0, 0.0, 0
    pending: Restored | None = None
    for record, at in events:
        match record:
            case NodeLost():
                fault_at, goal = at - (record.detect_ms or 0.0) / 1e3, 0
            case Restored():
                pending = record
            case PlanTaken(purpose="restore") if pending is not None:
                decided_at, goal = at, pending.from_step
                steps, pending = pending.from_step - pending.to_step, None
                estimated_s = record.estimated_transition_s or 0.0
                load_s = estimated_s - CHANGE_S - steps * record.estimated_step_s
                if is_oversubscribed:
                    estimated_s += steps * (usual_s - record.estimated_step_s)
                run.restores.append(Restore(steps=steps, estimated_load_s=load_s, estimated_s=estimated_s))
            case Recovered() if run.restores and len(record.recovery.lost_nodes) == 1:
                ready_ms = record.recovery.ready_ms
                if ready_ms is not None:
                    run.restores[-1].measured_load_s = fault_at + ready_ms / 1e3 - decided_at
                    if not run.restores[-1].steps:
                        run.restores[-1].measured_s = run.restores[-1].measured_load_s
            case StepCommitted(step=step) if goal and step == goal and run.restores[-1].steps:
                run.restores[-1].measured_s, goal = at - decided_at, 0
            case _:
                pass
    return run


def train(name: str, job: Job, kills: Sequence[tuple[int, int]]) -> Run:
    """Kills are (node, step)."""
    side = planaria_side(name, job, [f"kill:node={node},step={step},at=backward" for node, step in kills])
    run_to_end(side, MOST_S)
    run = read(list(read_events(side.log)), is_oversubscribed=job.cluster.device is Device.CPU)
    shutil.rmtree(side.log.parent)
    return run


def emulated(steps: int) -> Run:
    profile = profile_of(Case(name="even", nodes=16, layers=EVEN), measure_vote_s(16, 3, 4))
    path = SCRATCH / f"profile-{secrets.token_hex(4)}.json"
    path.write_bytes(msgspec.json.encode(profile))
    text = f"""
[train]
steps = {steps}
global_batch = 16
microbatch = 1
sequence_length = 1
[cluster]
nodes = 16
schedule = "1f1b"
device = "emulated"
profile = "{path}"
storage_gb_per_s = 0.1
[resilience]
policy = "morph"
[run]
checkpoint_every = 5
"""
    gap = steps // 7
    kills = [(node, gap * (at + 1) + at % 4) for at, node in enumerate((1, 6, 11, 4, 3, 9))]
    run = train("morph-emulated", make_job(text, *f_n0(1, 4)), kills)
    path.unlink()
    return run


def real(steps: int) -> Run:
    text = f"""
[model]
type = "gpt2"
config = {{ n_layer = 6, n_embd = 256, n_head = 4, n_positions = 32 }}
[train]
steps = {steps}
global_batch = 6
microbatch = 1
sequence_length = 32
[cluster]
nodes = 6
[resilience]
policy = "morph"
[run]
checkpoint_every = 5
"""
    gap = steps // 4
    return train("morph-cpu", make_job(text, *f_n0(1, 2)), [(0, gap), (3, 2 * gap + 1), (4, 3 * gap + 2)])


def tell(name: str, run: Run, first: int = 0) -> None:
    """Figures; of the restores from number `first` on."""
    for restore in run.restores:
        note(
            f"{name}: {restore.steps} steps again; load {_ms(restore.measured_load_s)} "
            f"(estimated {_ms(restore.estimated_load_s)}), back where it was after {_ms(restore.measured_s)} "
            f"(estimated {_ms(restore.estimated_s)})"
        )
    counted = run.restores[first:]
    loads = [(r.estimated_load_s, r.measured_load_s) for r in counted if r.measured_load_s is not None]
    wholes = [(r.estimated_s, r.measured_s) for r in counted if r.measured_s is not None]
    report(f"morph.{name}.restores", len(run.restores), "count")
    report(f"morph.{name}.steps-redone", sum(restore.steps for restore in run.restores), "count")
    for what, pairs in (("load", loads), ("transition", wholes)):
        if pairs:
            report(f"morph.{name}.{what}", statistics.median(measured for _, measured in pairs) * 1e3, "ms")
            errors = [abs(estimated - measured) / measured for estimated, measured in pairs]
            goal = "<= 0.2" if what == "transition" else None
            report(f"morph.{name}.{what}.error", statistics.mean(errors), "ratio", goal=goal)
    split = run.split
    for cause, seconds in msgspec.structs.asdict(split).items():
        report(f"morph.{name}.time.{cause}", seconds, "s")
    wasted = split.redone + split.recovering
    report(f"morph.{name}.wasted", wasted / (split.useful + wasted) if wasted else 0.0, "ratio")


def _ms(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds * 1e3:.0f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("emulated", "cpu"))
    parser.add_argument(
        "--steps", type=int, default=84, help="of the emulated job; half of it on the CPU (%(default)s)"
    )
    arguments = parser.parse_args()
    SCRATCH.mkdir(parents=True, exist_ok=True)
    if arguments.only != "cpu":
        tell("emulated", emulated(arguments.steps))
    if arguments.only != "emulated":
        tell("cpu", real(arguments.steps // 2), first=1)


if __name__ == "__main__":
    main()
