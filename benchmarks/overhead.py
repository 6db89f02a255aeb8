"""What being resilient costs while nothing fails.

ddp: 2 pipelines of one stage, against torch DistributedDataParallel over gloo.
1f1b: 1 pipeline of two stages, against torch.distributed.pipelining's Schedule1F1B.
commit: from the last worker's vote to the last worker's having the commit.

The programs run in turns (see interleave.py); a figure is the median over rounds of the ratio of neighbours.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
from collections.abc import Sequence

from commit_latency import measure_commit
from figures import note, report
from interleave import Side, interleave, ratios, step_time_s
from made_up import UNTIED_GPT2
from sides import make_job, pipelines_of, planaria_side, torch_side

DDP_JOB = """
[model]
type = "gpt2"
config = { n_layer = 6, n_embd = 384, n_head = 6, n_positions = 64, attn_pdrop = 0, embd_pdrop = 0, resid_pdrop = 0 }
[train]
steps = 1_000_000
global_batch = 8
microbatch = 4
sequence_length = 64
lr_schedule = "constant"
[cluster]
nodes = 2
[resilience]
fault_tolerance = 1
policy = "templates"
min_nodes_per_pipeline = 1
[run]
checkpoint_every = 0 # as the baselines
"""
"""10.7 million parameters, 43 MB of gradients; one microbatch of 4 x 64 tokens a pipeline."""

PIPELINE_JOB = f"""{UNTIED_GPT2}[train]
steps = 1_000_000
global_batch = 32
microbatch = 4
sequence_length = 64
lr_schedule = "constant"
[cluster]
nodes = 2
[resilience]
fault_tolerance = 0
policy = "templates"
min_nodes_per_pipeline = 2
[run]
checkpoint_every = 0
"""
"""8 microbatches of 4 x 64 tokens; 3.2 million parameters."""


def compare(title: str, baseline: Side, ours: Sequence[tuple[Side, str | None]], rounds: int, steps: int) -> None:
    """Run all in turns and report the ratio of each of ours to the baseline."""
    disturbed = interleave([baseline, *(side for side, _ in ours)], turns=rounds, steps=steps, warm_up=6)
    if disturbed:
        note(f"{title}: other programs disturbed {disturbed} of {rounds} rounds; run again when the machine is quiet")
    for side, _ in ours:
        note(f"{title} {side.name}: stages (worker, first layer, end) of each pipeline {pipelines_of(side)}")
        shutil.rmtree(side.log.parent)
    base_s = step_time_s(baseline)
    report(f"overhead.{title}.{baseline.name}.step", base_s * 1e3, "ms")
    for side, goal in ours:
        found = sorted(ratios(side, baseline))
        report(f"overhead.{title}.{side.name}.step", step_time_s(side) * 1e3, "ms")
        report(f"overhead.{title}.{side.name}.ratio", statistics.median(found), "ratio", goal=goal)
        note(f"{title} {side.name}: ratio by round {' '.join(f'{ratio:.3f}' for ratio in found)}")


def against_ddp(microbatches: int, rounds: int, steps: int) -> None:
    """(a) for so many microbatches a pipeline; the goals are those of one."""
    size = f"train.global_batch={8 * microbatches}"
    job = make_job(DDP_JOB, size)
    fast, exact = (make_job(DDP_JOB, size, f'train.numerics="{n}"') for n in ("fast", "exact"))
    compare(
        f"ddp.{microbatches}-microbatch",
        torch_side("torch", "ddp.py", job, 2),
        [(planaria_side("fast", fast), "<= 1.03"), (planaria_side("exact", exact), "<= 1.25")],
        rounds,
        steps,
    )


def against_1f1b(rounds: int, steps: int) -> None:
    """(b). Both sides accumulate gradients, clip by the global norm and step AdamW.

    The baseline is cut in the middle, where the planner cuts too; the note says so if it ever does not.
    """
    fast, exact = (make_job(PIPELINE_JOB, f'train.numerics="{n}"') for n in ("fast", "exact"))
    compare(
        "1f1b",
        torch_side("torch", "one_f_one_b.py", fast, 2, ["3"]),
        [(planaria_side("fast", fast), "<= 1.0"), (planaria_side("exact", exact), "<= 1.0")],
        rounds,
        steps,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["ddp", "1f1b", "commit"], help="one part of it")
    parser.add_argument("--rounds", type=int, default=8, help="turns of each side (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=4, help="counted steps a turn (default: %(default)s)")
    parser.add_argument("--microbatches", type=int, nargs="*", default=[1, 4], help="a pipeline, against DDP")
    arguments = parser.parse_args()
    if arguments.only in (None, "ddp"):
        for microbatches in arguments.microbatches:
            against_ddp(microbatches, arguments.rounds, arguments.steps)
    if arguments.only in (None, "1f1b"):
        against_1f1b(arguments.rounds, arguments.steps)
    if arguments.only in (None, "commit"):
        for nodes, nodes_per_pipeline in ((2, 1), (7, 2)):
            found = measure_commit(nodes, nodes_per_pipeline, steps=600)
            report(f"overhead.commit.{nodes}-workers", statistics.median(found) * 1e3, "ms", goal="<= 1.0")
            note(f"commit, {nodes} workers: 90 % within {statistics.quantiles(found, n=10)[-1] * 1e3:.3f} ms")


if __name__ == "__main__":
    main()
