"""Oobleck's choices beside ours on workers: the same job under `cluster.objective = "oobleck"` and under "steptime".

Both under the policy templates, on emulated devices: pipelines, shares of the batch and steps before and after a kill.
What counts is what steps took, whatever either objective thinks of them.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace

from fidelity import EVEN, SCRATCH, UNEVEN, Case, Plan, emulated_job, f_n0, measure_vote_s, run
from figures import note, report
from rich.console import Console
from rich.table import Table

from planaria.plan.settings import Objective

CASES = (
    Case(name="8 nodes, even", nodes=8, kills=(2,), layers=EVEN, overrides=f_n0(1, 2)),
    Case(name="8 nodes, uneven", nodes=8, kills=(5,), layers=UNEVEN, overrides=f_n0(1, 2)),
    Case(name="9 nodes, uneven, slow link", nodes=9, kills=(4,), layers=UNEVEN, link_ms=6.0, overrides=f_n0(2, 2)),
)


def plans_of(case: Case, objective: Objective, vote_s: float, attempts: int) -> list[Plan]:
    """The plans before and after the kill."""
    asked = replace(case, overrides=[*case.overrides, f"cluster.objective={objective.value}"])
    job, faults = emulated_job(asked, vote_s)
    return run(f"{case.name}, {objective.value}", job, faults, attempts)


def measured(case: Case, vote_s: float, attempts: int) -> None:
    """Runs a case under both objectives, and tells of them as a table and as figures."""
    found = {objective: plans_of(case, objective, vote_s, attempts) for objective in Objective}
    table = Table(title=case.name, box=None, title_justify="left", header_style="dim")
    for title in ("objective", "pipelines", "estimated ms", "measured ms"):
        table.add_column(title, justify="right")
    for objective, plans in found.items():
        for plan in plans:
            times = (f"{seconds * 1e3:.1f}" for seconds in (plan.estimated_s, plan.measured_s))
            table.add_row(objective.value, str(plan.pipelines), *times)
    Console(stderr=True, highlight=False).print(table)
    pairs = zip(found[Objective.OOBLECK], found[Objective.STEP_TIME], strict=True)
    for when, (theirs, ours) in zip(("before", "after"), pairs, strict=True):
        name = case.name.replace(", ", "-").replace(" ", "-")
        report(f"objectives.{name}.{when}.oobleck-over-ours", theirs.measured_s / ours.measured_s, "ratio")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attempts", type=int, default=3, help="runs of a job until one is quiet (%(default)s)")
    arguments = parser.parse_args()
    SCRATCH.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    for case in CASES:
        measured(case, measure_vote_s(case.nodes, arguments.attempts), arguments.attempts)
    note(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
