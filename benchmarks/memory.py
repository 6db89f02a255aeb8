"""Memory of a run, and whether anything grows.

worker: peak memory of each worker against the estimate, for several models, schedules and precisions.
steps: processes, threads, file descriptors and memory after 300 steps, less those after the first 30.
recoveries: the same for the survivors of 20 losses, one after the other, of 24 nodes.

Workers are forked from a process that has imported torch, so torch itself is in the RSS of all of them, and RSS grows
by the pages of the token file that are read. What a worker takes of the machine is `own`; what could leak is
`anonymous`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import shutil
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
from figures import note, report
from interleave import Side
from sides import make_job, planaria_side

from planaria.estimate.memory import memory_use
from planaria.job.settings import Job
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.plan import Plan, WorkerId
from planaria.protocol.messages.journal import JournalPlan, decode_entry
from planaria.runtime.component_settings import job_profile
from planaria.runtime.measure.memory import own_bytes

MB = 1e6
GPT2 = 'type = "gpt2"\nconfig = { n_layer = 6, n_embd = 384, n_head = 6, n_positions = 128 }'
WIDE = 'type = "gpt2"\nconfig = { n_layer = 4, n_embd = 768, n_head = 12, n_positions = 128 }'
BERT = """type = "bert"
config = { num_hidden_layers = 6, hidden_size = 384, num_attention_heads = 6, intermediate_size = 1536 }"""
LLAMA = """type = "llama"
config = { num_hidden_layers = 6, hidden_size = 384, num_attention_heads = 6, intermediate_size = 1024 }"""
WORKER_JOBS = {
    "gpt2": (GPT2, ()),
    "gpt2-bfloat16": (GPT2, ('train.dtype="bfloat16"',)),
    "gpt2-wide-1f1b": (WIDE, ('cluster.schedule="1f1b"',)),
    "gpt2-wide-one-stage": (WIDE, ("cluster.nodes=2", "resilience.min_nodes_per_pipeline=1")),
    "bert-recomputed": (BERT, ("train.activation_checkpointing=true",)),
    "llama-gpipe-fast": (
        LLAMA,
        ('cluster.schedule="gpipe"', 'train.numerics="fast"', "train.sequence_length=256"),
    ),
}
"""Model and what differs from LARGE_JOB."""

LARGE_JOB = """
[model]
{model}
[train]
steps = 1_000_000
global_batch = 16
microbatch = 2
sequence_length = 128
[cluster]
nodes = 4
[resilience]
fault_tolerance = 1
policy = "templates"
min_nodes_per_pipeline = 2
"""
SMALL_JOB = """
[model]
type = "gpt2"
config = { n_layer = 2, n_embd = 32, n_head = 2, n_positions = 16 }
[train]
steps = 1_000_000
global_batch = 48
microbatch = 1
sequence_length = 16
[cluster]
nodes = 4
[resilience]
fault_tolerance = 1
policy = "templates"
min_nodes_per_pipeline = 1
"""


@dataclass(frozen=True, slots=True)
class Usage:
    """What one process uses; memory in MB.

    Attributes:
        rss: resident, the pages of torch's and the data's files included.
        peak_rss: its highest ever.
        anonymous: resident without files: heap, stacks and shared memory.
        pss: resident; a page of n processes counts as 1/n.
        own: what the process adds to the machine: its private pages, and its share of shared memory.
        threads: of the process.
        descriptors: open file descriptors.
    """

    rss: float
    peak_rss: float
    anonymous: float
    pss: float
    own: float
    threads: int
    descriptors: int


def usage_of(pid: int) -> Usage:
    status = Path(f"/proc/{pid}/status").read_text()
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return Usage(
        rss=_megabytes(status, "VmRSS"),
        peak_rss=_megabytes(status, "VmHWM"),
        anonymous=_megabytes(status, "RssAnon") + _megabytes(status, "RssShmem"),
        pss=_megabytes(rollup, "Pss"),
        own=own_bytes(pid) / MB,
        threads=_number(status, "Threads"),
        descriptors=len(os.listdir(f"/proc/{pid}/fd")),
    )


def _megabytes(text: str, name: str) -> float:
    return _number(text, name) * 1024 / 1e6


def _number(text: str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)
    assert found is not None
    return int(found[1])


def processes(side: Side) -> dict[str, int]:
    """A run's processes by name: "coordinator", "forkserver" and "worker-N"."""
    coordinator, *others = side.pids
    found = {"coordinator": coordinator}
    for pid in others:
        try:
            output = os.readlink(f"/proc/{pid}/fd/1")
        except OSError:
            continue
        found[Path(output).stem if "worker-" in output else "forkserver"] = pid
    return found


def usage(side: Side) -> dict[str, Usage]:
    """Of all processes, at one moment."""
    side.stop()
    found = {name: usage_of(pid) for name, pid in processes(side).items()}
    side.go_on()
    return found


def measure_workers(watch_s: float) -> None:
    """Peak of each worker of some runs against its plan's estimate."""
    for name, (model, overrides) in WORKER_JOBS.items():
        measure_worker(name, make_job(LARGE_JOB.format(model=model), *overrides), watch_s)
    measure_worker("small", make_job(SMALL_JOB), watch_s)


def measure_worker(title: str, job: Job, watch_s: float) -> None:
    side = planaria_side("memory", job)
    side.start()
    try:
        side.steps(1)
        own: dict[str, float] = {}
        deadline = time.monotonic() + watch_s
        while time.monotonic() < deadline:
            last = usage(side)
            for name, used in last.items():
                own[name] = max(own.get(name, 0.0), used.own)
            time.sleep(0.07)
    finally:
        side.kill()
    folder = side.log.parent
    profile = job_profile(job, msgspec.json.decode((folder / "profile.json").read_bytes(), type=ModelProfile))
    plan = plans_of(folder)[-1]
    shutil.rmtree(folder)
    for worker in plan.workers:
        name = f"worker-{worker}"
        use = memory_use(plan, profile, WorkerId(worker))
        estimate = use.total / MB
        ratio = own[name] / estimate
        report(f"memory.{title}.{name}.estimate", estimate, "MB")
        report(f"memory.{title}.{name}.peak-own", own[name], "MB")
        report(
            f"memory.{title}.{name}.peak-own-over-estimate", ratio, "ratio", goal="0.9 to 1.1", ok=0.9 <= ratio <= 1.1
        )
        parts = ", ".join(f"{part} {size / MB:.1f}" for part, size in dataclasses.asdict(use).items())
        note(f"{title} {name}: {parts} MB; {last[name]}")


def plans_of(folder: Path) -> list[Plan]:
    """Returns a run's plans, in order."""
    with sqlite3.connect(folder / "journal.sqlite") as journal:
        entries = [decode_entry(body) for (body,) in journal.execute("SELECT entry FROM entries ORDER BY number")]
    return [entry.message.plan for entry in entries if isinstance(entry, JournalPlan)]


def compare(title: str, first: dict[str, Usage], last: dict[str, Usage]) -> None:
    """Report what grew; by the worst of the workers that were there both times."""
    for kind in ("coordinator", "forkserver", "worker"):
        names = [name for name in last if name.startswith(kind) and name in first]
        for what, unit, goal in (
            ("threads", "count", "<= 0"),
            ("descriptors", "count", "<= 0"),
            ("anonymous", "MB", "<= 2"),
        ):
            grown = max(getattr(last[name], what) - getattr(first[name], what) for name in names)
            report(f"memory.{title}.{kind}.{what}-grown", grown, unit, goal=goal)
    note(f"{title}: {len(first)} processes at first, {len(last)} at last")
    for name in ("coordinator", "forkserver", max(name for name in last if name.startswith("worker"))):
        note(f"  {name}: {first[name]} -> {last[name]}")


def measure_steps(steps: int) -> None:
    side = planaria_side("growth", make_job(SMALL_JOB))
    side.start()
    try:
        side.steps(30)
        first = usage(side)
        side.steps(steps)
        last = usage(side)
    finally:
        side.kill()
    shutil.rmtree(side.log.parent)
    compare(f"{steps}-steps", first, last)


def measure_recoveries(losses: int) -> None:
    every = 20
    faults = [f"kill:node={node},step={every * (node + 1)},at=backward" for node in range(losses)]
    side = planaria_side("losses", make_job(SMALL_JOB, f"cluster.nodes={losses + 4}"), faults)
    side.start()
    try:
        # After the first loss: what a recovery needs once is there.
        side.steps(2 * every - 2)
        first = usage(side)
        side.steps(every * losses)
        last = usage(side)
    finally:
        side.kill()
    recovered = sum(json.loads(line)["event"] == "recovered" for line in side.log.read_text().splitlines())
    shutil.rmtree(side.log.parent)
    report(f"memory.{losses}-recoveries.recoveries", recovered, "count", goal=f">= {losses}")
    workers = sum(name.startswith("worker") for name in last)
    report(f"memory.{losses}-recoveries.workers-left", workers, "count", goal="<= 4")
    compare(f"{losses}-recoveries", first, last)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["worker", "steps", "recoveries"], help="one part of it")
    parser.add_argument("--watch", type=float, default=10, help="seconds for each job's peak (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=300, help="of which growth is measured (default: %(default)s)")
    parser.add_argument("--recoveries", type=int, default=20, help="likewise (default: %(default)s)")
    arguments = parser.parse_args()
    if arguments.only in (None, "worker"):
        measure_workers(arguments.watch)
    if arguments.only in (None, "steps"):
        measure_steps(arguments.steps)
    if arguments.only in (None, "recoveries"):
        measure_recoveries(arguments.recoveries)


if __name__ == "__main__":
    main()
