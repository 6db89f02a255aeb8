"""GPT-2 of its real size (124 million parameters, 50,257 tokens) on four workers of one machine, with a kill.

    python benchmarks/real_size.py [--steps 4]

Tokens are byte pairs learned from Python's standard library, and that is the text. Reported: the time that tokens
take; each worker's memory beside the estimate of the first plan (`own`: what the process adds to the machine; PSS: with
its part of what it shares), both at their highest before the kill; steps; and whether the run ends with the bits of
`planaria.reference`. Needs 12 GB that are free.
"""

from __future__ import annotations

import argparse
import json
import re
import secrets
import shutil
import statistics
import time
from pathlib import Path

import msgspec
from figures import SCRATCH, Figures, note
from interleave import Side
from memory import MB, plans_of, processes, usage_of
from sides import make_job, planaria_side
from token_ids import train_tokenizer

import planaria
from planaria.data.opening import prepare
from planaria.estimate.memory import memory_use
from planaria.job.settings import Job
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.plan import WorkerId
from planaria.protocol.messages.records import Recovered, StepCommitted
from planaria.runtime.component_settings import job_profile
from planaria.runtime.run_folder.recorder import read_events

NEEDED_GB = 12
VOCABULARY = 50_257
KILL_STEP = 3
LOOKED_EVERY_S = 0.2
MOST_S = 900.0
JOB = """
[model]
type = "gpt2"
[data]
tokenizer = "{tokenizer}"
[train]
steps = {steps}
global_batch = 4
microbatch = 1
sequence_length = 128
warmup_steps = 2
[cluster]
nodes = 4
[resilience]
fault_tolerance = 1
min_nodes_per_pipeline = 2
"""


def free_gb() -> float:
    found = re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())
    assert found is not None
    return int(found[1]) * 1024 / 1e9


def job_of(steps: int, figures: Figures) -> Job:
    """The job, once its tokenizer is trained and its tokens are prepared, both timed."""
    tokenizer = SCRATCH / "real-size" / "tokenizer.json"
    tokenizer.parent.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    train_tokenizer(tokenizer, VOCABULARY, 30_000_000, ["<|endoftext|>"])
    figures.add("real-size.tokenizer.trained-in", time.perf_counter() - began, "s")
    job = make_job(JOB.format(tokenizer=tokenizer, steps=steps))
    tokens = SCRATCH / "real-size" / secrets.token_hex(4)
    began = time.perf_counter()
    count = prepare(job, tokens).identity.tokens
    figures.add("real-size.tokens.prepared-in", time.perf_counter() - began, "s")
    figures.add("real-size.tokens", count / 1e6, "million")
    shutil.rmtree(tokens)
    return job


def watch(side: Side) -> dict[str, tuple[float, float]]:
    """Waits for the run's end; returns the highest own and PSS of each worker before the kill, in MB."""
    peaks: dict[str, tuple[float, float]] = {}
    deadline = time.monotonic() + MOST_S
    while not side.has_ended:
        if time.monotonic() > deadline:
            raise RuntimeError(f"no end after {MOST_S:g} s: {side.output.read_text()[-2000:]}")
        if not side.log.exists() or '"node_lost"' not in side.log.read_text():
            for name, pid in processes(side).items() if side.log.exists() else ():
                try:
                    used = usage_of(pid)
                except (FileNotFoundError, ProcessLookupError, AssertionError):
                    continue  # it is gone, or going
                own, pss = peaks.get(name, (0.0, 0.0))
                peaks[name] = max(own, used.own), max(pss, used.pss)
        time.sleep(LOOKED_EVERY_S)
    return peaks


def measure(steps: int, figures: Figures) -> None:
    job = job_of(steps, figures)
    side = planaria_side("real-size", job, [f"kill:node=2,step={KILL_STEP},at=backward"])
    side.start()
    try:
        peaks = watch(side)
    finally:
        side.kill()
    folder = side.log.parent
    summary = json.loads((folder / "summary.json").read_text())
    note(f"{summary['status']}: {summary['message']}")
    profile = job_profile(job, msgspec.json.decode((folder / "profile.json").read_bytes(), type=ModelProfile))
    plan = plans_of(folder)[0]
    for worker in plan.workers:
        estimate = memory_use(plan, profile, WorkerId(worker)).total / MB
        own, pss = peaks[f"worker-{worker}"]
        figures.add(f"real-size.worker-{worker}.estimate", estimate, "MB")
        figures.add(f"real-size.worker-{worker}.peak-own", own, "MB")
        figures.add(f"real-size.worker-{worker}.peak-pss", pss, "MB")
        figures.add(f"real-size.worker-{worker}.peak-own-over-estimate", own / estimate, "ratio")
    records = [record for record, _ in read_events(side.log)]
    durations = [record.duration_s for record in records if isinstance(record, StepCommitted)]
    figures.add("real-size.step", statistics.median(durations), "s", samples=len(durations))
    for record in records:
        if isinstance(record, Recovered):
            note(record.recovery.reason)
            figures.add("real-size.recovery", record.recovery.resume_ms / 1e3, "s")
            figures.add("real-size.moved", record.recovery.transfer_bytes / MB, "MB")
    alone = planaria.reference(job, name=f"real-size-{secrets.token_hex(4)}")
    figures.add("real-size.same-bits", alone.weights_sha256 == summary["weights_sha256"], "yes", goal=">= 1")
    shutil.rmtree(alone.folder)
    shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4, help=f"at least {KILL_STEP} (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    given = parser.parse_args()
    if free_gb() < NEEDED_GB:
        note(f"{free_gb():.1f} GB are free, and {NEEDED_GB} are needed")
        return
    figures = Figures("real size")
    measure(given.steps, figures)
    figures.finish(given.json)


if __name__ == "__main__":
    main()
