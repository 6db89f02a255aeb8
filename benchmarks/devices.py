"""Stages on d devices that take microbatches in turn: for each d the estimate of a step, beside what its steps took.

The last row is `cluster.devices_per_stage = "auto"`: which d the planner chose, and by how much its steps are longer
than those of the quickest d.

emulated: two nodes of 8 devices, which take a profile's times; uneven layers, d = 1, 2, 4 and 8. Of each number also
the plan after one device of a node was killed alone.
real: one node of two processors that compute a small GPT-2, as one pipeline of two stages (d = 1) and as one stage of
two lanes (d = 2); what both processors at work cost each other is measured with the profile.
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

AUTO = 0
"""In place of a number of devices: the planner chooses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the table.

    Attributes:
        asked: number of devices; `AUTO`: any.
        plan: the run's plan, and what its steps took.
        nodes: of the job, each a replica: a plan has as many pipelines for each lane.
        after: the plan after a device was lost alone; None: none was.
    """

    asked: int
    plan: Plan
    nodes: int
    after: Plan | None = None

    @property
    def devices(self) -> int:
        return self.plan.pipelines // self.nodes


def emulated(devices: int, vote_s: float) -> Job:
    case = Case(
        name=f"2 nodes of 8, stages on {devices or 'any'}",
        nodes=2,
        layers=[4 * ms for ms in UNEVEN],
        overrides=[*f_n0(1, 1), "cluster.devices_per_node=8", _stages(devices), f"train.steps={2 * STEPS_BETWEEN}"],
    )
    job, _ = emulated_job(case, vote_s)
    return job


def real(devices: int) -> Job:
    return make_job(REAL, *f_n0(0, 1), "cluster.nodes=1", "cluster.devices_per_node=2", _stages(devices))


def _stages(devices: int) -> str:
    return f"cluster.devices_per_stage={devices or 'auto'}"


def measured(kind: str, jobs: Sequence[tuple[int, Job]], attempts: int, faults: Sequence[str] = ()) -> None:
    """Runs each number's job, and tells of them as a table and as figures."""
    rows = []
    for asked, job in jobs:
        plan, *after = run(f"{kind}, stages on {asked or 'any'}", job, faults, attempts)
        rows.append(Row(asked=asked, plan=plan, nodes=job.cluster.least_nodes, after=after[0] if after else None))
    table = Table(title=f"{kind}: a step by devices of a stage", box=None, title_justify="left", header_style="dim")
    for title in ("devices", "workers", "estimated ms", "measured ms", "error"):
        table.add_column(title, justify="right")
    for row in rows:
        name = str(row.asked) if row.asked else f"auto: {row.devices}"
        for told in (row.plan, *([row.after] if row.after else [])):
            times = (f"{seconds * 1e3:.1f}" for seconds in (told.estimated_s, told.measured_s))
            table.add_row(name, str(told.workers), *times, f"{told.error:+.1%}")
    Console(stderr=True, highlight=False).print(table)
    fixed = [row for row in rows if row.asked]
    for row in fixed:
        report(f"devices.{kind}.{row.asked}.error", abs(row.plan.error), "ratio", goal=f"<= {WORST}")
    errors = [abs(row.plan.error) for row in fixed]
    report(f"devices.{kind}.error-mean", sum(errors) / len(errors), "ratio", goal=f"<= {MEAN}")
    lost = [abs(row.after.error) for row in rows if row.after is not None]
    if lost:
        report(f"devices.{kind}.device-lost.error-mean", sum(lost) / len(lost), "ratio", goal=f"<= {MEAN}")
    took_s = {row.asked: row.plan.measured_s for row in fixed}
    chosen = next(row for row in rows if not row.asked)
    report(f"devices.{kind}.chosen", chosen.devices, "count")
    report(
        f"devices.{kind}.chosen-over-quickest", took_s[chosen.devices] / min(took_s.values()), "ratio", goal="<= 1.05"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attempts", type=int, default=3, help="runs of a job until one is quiet (%(default)s)")
    parser.add_argument("--only", choices=("emulated", "real"), help="one part alone")
    arguments = parser.parse_args()
    SCRATCH.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    if arguments.only != "real":
        vote_s = measure_vote_s(16, arguments.attempts)
        jobs = [(devices, emulated(devices, vote_s)) for devices in (1, 2, 4, 8, AUTO)]
        lost = f"kill:node=1,step={STEPS_BETWEEN},at=backward,device=3"
        measured("emulated", jobs, arguments.attempts, [lost])
    if arguments.only != "emulated":
        measured("real", [(devices, real(devices)) for devices in (1, 2, AUTO)], arguments.attempts)
    note(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
