"""What a slow node costs, and how soon: 12 emulated nodes, one of which becomes slow and fast again.

For each slowness:
found: steps from the first slow one to the one that tells.
suffered, adapted, restored: a step before the new plan, under it, and after the node is fast again, over one with all
nodes fast; of the same run, medians.
share: what the adapted step could be at best, the work dealt out over all nodes by their speed.
fidelity: the adapted step over what its plan was estimated to take.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
from pathlib import Path

import msgspec
from figures import SCRATCH, note, report
from sides import planaria_side

from planaria.job.parse import load_job
from planaria.profile.presets.presets import preset
from planaria.protocol.messages.records import NodeSpeed, PlanTaken, StepCommitted
from planaria.runtime.run_folder.recorder import read_events

EXAMPLE = Path(__file__).parents[1] / "examples" / "emulated.toml"
NODES = 12
NODE = 5
SLOW_STEP, FAST_STEP, STEPS = 6, 20, 70


def measure(factor: float, profile: Path) -> None:
    changes = [
        f"train.steps={STEPS}",
        f'cluster.profile="{profile}"',
        'cluster.schedule="eager-1f1b"',
        "resilience.policy=templates",
        f'run.folder="{SCRATCH / "runs"}"',
        "run.checkpoint_every=0",
    ]
    fault = f"slow:node={NODE},step={SLOW_STEP},factor={factor},until={FAST_STEP}"
    side = planaria_side("slow-nodes", load_job(EXAMPLE, changes), [fault])
    subprocess.run(side.commands[0][0], check=True, timeout=550, stdout=subprocess.DEVNULL)
    records = [record for record, _ in read_events(side.log)]
    shutil.rmtree(side.log.parent)
    step_s = {record.step: record.duration_s for record in records if isinstance(record, StepCommitted)}
    slower, *others = (record for record in records if isinstance(record, NodeSpeed))
    plans = [record for record in records if isinstance(record, PlanTaken)]
    adapted = next(plan for plan in plans if plan.step > slower.step and plan.purpose == "reconfigure")
    ends = [plan.step for plan in plans] + [STEPS + 1]

    def median_s(first: int, end: int) -> float:
        return statistics.median(step_s[step] for step in range(first, end))

    fast_s = median_s(2, SLOW_STEP)
    name = f"slow_nodes.x{factor:g}"
    for plan in plans:
        note(f"{name}: step {plan.step}, {plan.purpose}, estimated {plan.estimated_step_s:.3f} s: {plan.reason}")
    under_it = median_s(adapted.step + 1, next(end for end in ends if end > adapted.step))
    report(f"{name}.found", slower.step - SLOW_STEP + 1, "count")
    report(f"{name}.suffered", median_s(SLOW_STEP, slower.step + 1) / fast_s, "ratio")
    report(f"{name}.adapted", under_it / fast_s, "ratio")
    report(f"{name}.share", NODES / (NODES - 1 + 1 / factor), "ratio")
    report(f"{name}.fidelity", under_it / adapted.estimated_step_s, "ratio")
    if restored := [record for record in others if record.speed == 1]:
        report(f"{name}.restored_after", restored[-1].step - FAST_STEP + 1, "count")
        report(f"{name}.restored", median_s(max(ends[-2], restored[-1].step) + 1, STEPS + 1) / fast_s, "ratio")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("factors", nargs="*", type=float, default=[1.5, 2.0, 5.0], help="default: 1.5 2 5")
    arguments = parser.parse_args()
    SCRATCH.mkdir(parents=True, exist_ok=True)
    profile = SCRATCH / "gpt2-345m.json"
    profile.write_bytes(msgspec.json.encode(preset("gpt2-345m", "a100")))
    for factor in arguments.factors:
        measure(factor, profile)


if __name__ == "__main__":
    main()
