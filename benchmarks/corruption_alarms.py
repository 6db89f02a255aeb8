"""False alarms: audits are counted over runs on real processes in which no node computes wrong.

Called by `corruption.py --alarms FILE`. The runs are ordinary ones, of a small job all of whose computation is audited;
in every second run nodes are killed, so that plans change meanwhile. One thing is other than shipped: the coordinator
adds to FILE, for each step whose votes it compares, how many audits these told of, and whether the shipped comparison
(`agreement.difference`) found a difference. All runs are of one job, so their weights must be the same.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from corruption_trials import compared, forked_by, overrides, read
from torch import nn

from planaria.protocol.handlers import salvage
from planaria.protocol.step.agreement import Claims, Difference

COUNTED = "PLANARIA_ALARMS"
"""Variable with the file of counts and the run's number, for the coordinator's process."""

JOB = """
[model]
type = "corruption_alarms:tiny"
config = { depth = DEPTH }
[train]
steps = STEPS
global_batch = BATCH
microbatch = 1
sequence_length = 4
learning_rate = 1e-4
[cluster]
nodes = NODES
[resilience]
policy = "templates"
min_nodes_per_pipeline = LEAST
heartbeat_timeout_s = 20.0
audit = 1.0
[run]
checkpoint_every = 0
"""

NUMBERS = {"DEPTH": 2, "STEPS": 200, "BATCH": 128, "NODES": 8, "LEAST": 4}
"""Of two pipelines with a layer a node: a processor second has the most audits where each is of one layer."""

POINTS = ("forward", "backward", "sync")
KILLS = 2
"""Nodes killed in every second run, each a node more than the others' jobs have."""


def tiny(depth: int) -> list[nn.Module]:
    """A language model that takes no time: what is compared is as many bits a layer as may be wrong in a large one."""
    blocks = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(depth)]
    return [nn.Embedding(259, 4), *blocks, nn.Linear(4, 259)]


class Counter:
    """Counts what the coordinator's comparisons of votes compare, beside them."""

    def __init__(self) -> None:
        path, _, self._run = os.environ[COUNTED].rpartition("#")
        self._file = Path(path).open("a", buffering=1)  # noqa: SIM115 - as long as the process lives
        self._shipped = salvage.difference

    def difference(self, claims: Claims) -> Difference | None:
        """In place of the shipped one, which it calls."""
        found = self._shipped(claims)
        row = {"run": int(self._run), "audits": compared(claims), "alarm": None if found is None else str(found)}
        self._file.write(json.dumps(row) + "\n")
        return found


def run_counted(counts: Path, number: int, numbers: dict[str, int], kills: int) -> str:
    """Runs the job once; returns the SHA-256 of its weights, or how it ended otherwise."""
    import planaria
    from planaria.job.parse import parse_job

    text = JOB
    for name, value in {**numbers, "NODES": numbers["NODES"] + kills}.items():
        text = text.replace(name, str(value))
    draw = Random(number)
    nodes = draw.sample(range(numbers["NODES"] + kills), kills)
    steps = range(3, numbers["STEPS"] - 2)
    faults = [f"kill:node={node},step={draw.choice(steps)},at={draw.choice(POINTS)}" for node in nodes]
    with tempfile.TemporaryDirectory() as folder, forked_by(__file__, COUNTED, f"{counts.resolve()}#{number}"):
        job = parse_job(text, overrides=overrides(Path(folder)), origin="alarms")
        result = planaria.train(job, name="alarms", faults=faults)
        events = [json.loads(line) for line in (result.folder / "events.jsonl").read_text().splitlines()]
        named = sum(event["event"] == "computed_wrong" for event in events)
        lost = sum(event["event"] == "node_lost" for event in events)
        plans = sum(event["event"] == "plan_taken" for event in events)
        bits = json.loads((result.folder / "summary.json").read_text()).get("weights_sha256")
    print(f"run {number}: {result.status.value}, {lost} nodes lost, {plans} plans, {named} named", flush=True)
    with counts.open("a") as file:
        file.write(json.dumps({"run": number, "ended": result.status.value, "bits": bits, "named": named}) + "\n")
    return str(bits)


def cpu_s() -> float:
    """Returns processor seconds of this process and all that it started and that ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def alarms(counts: Path, wanted: int, minutes: float, numbers: dict[str, int] | None = None) -> None:
    """Runs jobs until so many audits are counted, then tells.

    Args:
        counts: file of rows; those that are there count.
        wanted: audits.
        minutes: after which no further run begins.
        numbers: of the job, where they are other than `NUMBERS`.
    """
    began, used = time.monotonic(), cpu_s()
    before = audits = _audits(read(counts))
    while audits < wanted and time.monotonic() - began < 60 * minutes:
        number = 1 + max((row["run"] for row in read(counts)), default=0)
        run_counted(counts, number, {**NUMBERS, **(numbers or {})}, KILLS * (1 - number % 2))
        audits = _audits(read(counts))
        took_s, took_cpu_s = time.monotonic() - began, cpu_s() - used
        print(f"    {audits} audits; {(audits - before) / took_s:.0f} a second, "
              f"{(audits - before) / took_cpu_s:.0f} a processor second", flush=True)  # fmt: skip
    tell(read(counts))


def _audits(rows: Sequence[dict[str, Any]]) -> int:
    return sum(row.get("audits", 0) for row in rows)


def tell(rows: Sequence[dict[str, Any]]) -> None:
    """Prints how many audits were compared, and how many alarms there were."""
    steps = [row for row in rows if "audits" in row]
    ended = [row for row in rows if "ended" in row]
    differing = [row["alarm"] for row in steps if row["alarm"] is not None]
    print(f"{len(ended)} runs, {len(steps)} comparisons of all votes of a step, {_audits(rows)} audits compared: "
          f"{len(differing)} differences, {sum(row['named'] for row in ended)} nodes named")  # fmt: skip
    print(f"ends: {sorted({row['ended'] for row in ended})}; different weights: {len({row['bits'] for row in ended})}")
    print("\n".join(differing))


if __name__ == "__main__":
    from planaria.runtime.nodes.forkserver import main

    salvage.difference = Counter().difference  # type: ignore[assignment]
    main(int(sys.argv[1]), sys.argv[2])
