"""What a loss costs: real SIGKILLs in the middle of steps of the demo job.

resume: from the kill to the next committed step, less one failure-free step of the same run; median over the kills.
detect: from the kill to the coordinator's knowing it.
salvage: microbatches that ran again, over those of the pipeline that broke; the worst of all kills.
torchrun: the same for torchrun's elastic restart of a small DDP job, without a checkpoint to read.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from figures import SCRATCH, note, report
from sides import BASELINES, planaria_side

from planaria.job.parse import load_job
from planaria.observe.recorder import read_events
from planaria.protocol.records import NodeLost, PlanTaken, Recovered, Recovery, StepCommitted

DEMO = Path(__file__).parents[1] / "examples" / "demo.toml"
POINTS = ("forward", "backward", "send", "recv", "sync", "vote")
"""Where the kills strike, in turn."""
KILLS_A_RUN = 3
"""Of 7 nodes, (f + 1) n0 = 4 must stay."""
STEPS_BETWEEN = 9


@dataclass(frozen=True, slots=True)
class Kill:
    """One loss.

    Attributes:
        recovery: as the run recorded it.
        step_ms: a failure-free step of the same run.
        share: microbatches of the pipeline that broke.
    """

    recovery: Recovery
    step_ms: float
    share: int


def kills_of(events: Path) -> list[Kill]:
    """The losses of one run."""
    durations: dict[int, float] = {}
    disturbed: set[int] = set()
    found: list[tuple[Recovery, int]] = []
    share_of: dict[int, int] = {}
    shares: dict[int, int] = {}
    for record, _ in read_events(events):
        match record:
            case PlanTaken(purpose="start" | "reconfigure"):
                pairs = zip(record.pipelines, record.microbatches, strict=True)
                share_of = {stage[0]: count for pipeline, count in pairs for stage in pipeline}
                disturbed.add(record.step)
            case NodeLost():
                shares[record.node] = share_of[record.node]
                disturbed |= {record.step, record.step + 1}
            case StepCommitted():
                durations[record.step] = record.duration_s
            case Recovered(recovery=recovery):
                found.append((recovery, sum(shares[node] for node in recovery.lost_nodes)))
            case _:
                pass
    step_ms = statistics.median(s for step, s in durations.items() if step not in disturbed) * 1e3
    return [Kill(recovery, step_ms, share) for recovery, share in found]


def measure_kills(runs: int) -> list[Kill]:
    points = cycle(POINTS)
    kills: list[Kill] = []
    for run in range(runs):
        nodes = [(1 + 2 * number + run) % 7 for number in range(KILLS_A_RUN)]
        faults = [
            f"kill:node={node},step={STEPS_BETWEEN * (number + 1)},at={point}"
            for number, (node, point) in enumerate(zip(nodes, islice(points, KILLS_A_RUN), strict=True))
        ]
        steps = STEPS_BETWEEN * (KILLS_A_RUN + 1)
        job = load_job(DEMO, [f"train.steps={steps}", f'run.folder="{SCRATCH / "runs"}"'])
        side = planaria_side("recovery", job, faults)
        subprocess.run(side.commands[0][0], check=True, timeout=120, stdout=subprocess.DEVNULL)
        of_run = kills_of(side.log)
        for fault, kill in zip(faults, of_run, strict=False):
            r = kill.recovery
            note(
                f"{fault}: step {kill.step_ms:.0f} ms; detected after {r.detect_ms or 0:.1f} ms, decided in "
                f"{r.decide_ms:.1f} ms, committed after {r.resume_ms:.0f} ms; {r.microbatches_rerun} microbatches "
                f"again of {kill.share} in the broken pipeline; {r.transfer_bytes} bytes moved"
            )
        kills += of_run
        shutil.rmtree(side.log.parent)
    return kills


def against_torchrun(attempts: int) -> list[float]:
    """Seconds from the SIGKILL of one of two workers to the next step's end, of the attempts that came to one."""
    found = []
    for _ in range(attempts):
        seconds = _torchrun_once(timeout_s=20)
        if seconds is None:
            note("torchrun: no step within 20 s of the start; the restart hung or gave up")
        else:
            found.append(seconds)
    return found


def _torchrun_once(timeout_s: float) -> float | None:
    log = SCRATCH / f"elastic-{secrets.token_hex(4)}.jsonl"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    process = subprocess.Popen(
        [*command, str(BASELINES / "elastic.py"), str(log)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    killed = None
    try:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.05)
            lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
            killed = next((line["time_s"] for line in lines if "killed" in line), killed)
            resumed = next((line["time_s"] for line in lines if line["life"] == 1), None)
            if killed is not None and resumed is not None:
                return float(resumed - killed)
    finally:
        process.terminate()
        process.wait()
        log.unlink(missing_ok=True)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=4, help="runs of 3 kills each (default: %(default)s)")
    parser.add_argument("--no-torchrun", action="store_true", help="leave the baseline out")
    arguments = parser.parse_args()
    SCRATCH.mkdir(parents=True, exist_ok=True)
    kills = measure_kills(arguments.runs)
    report("recovery.kills", len(kills), "count")
    report("recovery.step", statistics.median(kill.step_ms for kill in kills), "ms")
    report("recovery.resume", statistics.median(kill.recovery.resume_ms for kill in kills), "ms")
    beyond = statistics.median(kill.recovery.resume_ms - kill.step_ms for kill in kills)
    report("recovery.resume-less-a-step", beyond, "ms", goal="<= 200")
    seen = [kill.recovery.detect_ms for kill in kills if kill.recovery.detect_ms is not None]
    report("recovery.detect", statistics.median(seen), "ms", goal="<= 50")
    report("recovery.decide", statistics.median(kill.recovery.decide_ms for kill in kills), "ms")
    worst = max(kill.recovery.microbatches_rerun / kill.share for kill in kills)
    report("recovery.salvage", worst, "ratio", goal="<= 1.0")
    if not arguments.no_torchrun:
        found = against_torchrun(attempts=3)
        report("recovery.torchrun.restarts-that-came-back", len(found), "count")
        if found:
            report("recovery.torchrun.resume", statistics.median(found) * 1e3, "ms")


if __name__ == "__main__":
    main()
