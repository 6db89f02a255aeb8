"""Stages on d devices that take microbatches in turn, or share each: the estimate of a step, beside what steps took.

The last row leaves both to the planner (`cluster.devices_per_stage` and `stage_parallelism` "auto"): what it chose, and
by how much its steps are longer than those of the quickest other row.

emulated: two nodes of 8 devices, which take a profile's times; uneven layers, d = 1, 2, 4 and 8. Of each number that
takes turns also the plan after one device of a node was killed alone.
real: one node of two processors, a small GPT-2 of two virtual shards, as one pipeline of two stages (d = 1),
as one stage of two lanes (d = 2), and as one whose processors share each microbatch; what both processors at work cost
each other, and a device that shares, are measured with the profile.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from fidelity import (
    MEAN,
    REAL,
    SCRATCH,
    STEPS_BETWEEN,
    UNEVEN,
    WORST,
    Case,
    Plan,
    emulated_job,
    f_n0,
    measure_vote_s,
    run,
)
from figures import note, report
from rich.console import Console
from rich.table import Table
from sides import make_job

from planaria.job.settings import Job

AUTO = "auto"

LONG = 12
"""Times `UNEVEN`: layers of 24 to 108 ms forwards, so that two cores have time for the messages of 16 workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the table.

    Attributes:
        asked: number of devices, and whether they share microbatches; `AUTO`: whatever the planner chooses.
        plan: the run's plan, and what its steps took.
        after: the plan after a device was lost alone; None: none was.
    """

    asked: str
    plan: Plan
    after: Plan | None = None


def emulated(asked: str, vote_s: float) -> Job:
    shares = asked != "1" and not asked.isdigit()
    case = Case(
        name=f"2 nodes of 8, stages on {asked}",
        nodes=2,
        layers=[LONG * ms for ms in UNEVEN],
        devices=(1, 2, 4, 8) if shares else (1,),
        overrides=[
            *f_n0(1, 1),
            "cluster.devices_per_node=8",
            "model.type=gpt2",
            *_stages(asked, 8),
            f"train.steps={2 * STEPS_BETWEEN}",
        ],
    )
    job, _ = emulated_job(case, vote_s)
    return job


def real(asked: str) -> Job:
    return make_job(REAL, *f_n0(0, 1), "cluster.nodes=1", "cluster.devices_per_node=2", *_stages(asked, 2))


def _stages(asked: str, shards: int) -> list[str]:
    devices, _, kind = asked.partition(" ")
    parallelism = AUTO if asked == AUTO else kind or "sharded"
    return [
        f"cluster.devices_per_stage={devices}",
        f"cluster.stage_parallelism={parallelism}",
        f"model.virtual_shards={shards}",
    ]


def measured(kind: str, jobs: Sequence[tuple[str, Job]], attempts: int, lost: str = "") -> None:
    """Runs each row's job, and tells of them as a table and as figures."""
    rows = []
    for asked, job in jobs:
        faults = [lost] if lost and asked.isdigit() else []
        plan, *after = run(f"{kind}, stages on {asked}", job, faults, attempts)
        rows.append(Row(asked=asked, plan=plan, after=after[0] if after else None))
    table = Table(title=f"{kind}: a step by devices of a stage", box=None, title_justify="left", header_style="dim")
    for title in ("devices", "workers", "estimated ms", "measured ms", "error"):
        table.add_column(title, justify="right")
    for row in rows:
        for told in (row.plan, *([row.after] if row.after else [])):
            times = (f"{seconds * 1e3:.1f}" for seconds in (told.estimated_s, told.measured_s))
            table.add_row(row.asked, str(told.workers), *times, f"{told.error:+.1%}")
    Console(stderr=True, highlight=False).print(table)
    fixed = [row for row in rows if row.asked != AUTO]
    for row in fixed:
        report(f"devices.{kind}.{row.asked.replace(' ', '-')}.error", abs(row.plan.error), "ratio", goal=f"<= {WORST}")
    errors = [abs(row.plan.error) for row in fixed]
    report(f"devices.{kind}.error-mean", sum(errors) / len(errors), "ratio", goal=f"<= {MEAN}")
    after = [abs(row.after.error) for row in rows if row.after is not None]
    if after:
        report(f"devices.{kind}.device-lost.error-mean", sum(after) / len(after), "ratio", goal=f"<= {MEAN}")
    took_s = next(row.plan.measured_s for row in rows if row.asked == AUTO)
    least_s = min(row.plan.measured_s for row in fixed)
    report(f"devices.{kind}.chosen-over-quickest", took_s / least_s, "ratio", goal="<= 1.05")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attempts", type=int, default=3, help="runs of a job until one is quiet (%(default)s)")
    parser.add_argument("--only", choices=("emulated", "real"), help="one part alone")
    arguments = parser.parse_args()
    SCRATCH.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    if arguments.only != "real":
        vote_s = measure_vote_s(16, arguments.attempts)
        rows = ("1", "2", "4", "8", "2 tensor", "4 tensor", "8 tensor", AUTO)
        lost = f"kill:node=1,step={STEPS_BETWEEN},at=backward,device=3"
        measured("emulated", [(asked, emulated(asked, vote_s)) for asked in rows], arguments.attempts, lost)
    if arguments.only != "emulated":
        measured("real", [(asked, real(asked)) for asked in ("1", "2", "2 tensor", AUTO)], arguments.attempts)
    note(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
