"""What checkpoints cost that a run writes by default: whole jobs in turns, with them and with none on the way.

A figure is the median over rounds of the ratio of neighbours. The goal is the one that the run itself aims at.
"""

from __future__ import annotations

import argparse
import secrets
import statistics
from dataclasses import dataclass

from figures import note, report
from sides import make_job

import planaria
from planaria.job.settings import Job
from planaria.protocol.messages.records import AnyRecord, CheckpointSaved, StepCommitted

JOB = """
[model]
type = "gpt2"
config = { n_layer = 6, n_embd = 384, n_head = 6, n_positions = 64 }
[train]
steps = 400
global_batch = 8
microbatch = 4
sequence_length = 64
[cluster]
nodes = 2
[resilience]
fault_tolerance = 1
policy = "templates"
min_nodes_per_pipeline = 1
"""
"""10.7 million parameters: a checkpoint of 128 MB."""

WARM_UP = 10
"""First steps, which do not count."""


@dataclass
class Watch:
    """What a run told.

    Attributes:
        steps_s: seconds of each step.
        saved_s: of each checkpoint on the way, until it was on disk.
    """

    steps_s: list[float]
    saved_s: list[float]

    def __call__(self, record: AnyRecord, time_s: float) -> None:
        match record:
            case StepCommitted(duration_s=seconds):
                self.steps_s.append(seconds)
            case CheckpointSaved(seconds=seconds):
                self.saved_s.append(seconds)
            case _:
                pass


def train(job: Job) -> Watch:
    """One run, to its end."""
    watch = Watch([], [])
    result = planaria.train(job, name=f"checkpoints-{secrets.token_hex(4)}", observers=[watch], progress=False)
    if result.status != "completed":
        raise SystemExit(f"a run ended as {result.status}: {result.message}")
    watch.saved_s.pop()  # the last one, for which everybody waits
    return watch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of two runs each (default: %(default)s)")
    rounds = parser.parse_args().rounds
    without, default = make_job(JOB, "run.checkpoint_every=0"), make_job(JOB)
    ratios, counts = [], []
    for _ in range(rounds):
        base, ours = train(without), train(default)
        ratios.append(sum(ours.steps_s[WARM_UP:]) / sum(base.steps_s[WARM_UP:]))
        counts.append(len(ours.saved_s))
        note(
            f"{sum(base.steps_s):.1f} s without, {sum(ours.steps_s):.1f} s with {len(ours.saved_s)} checkpoints of "
            f"{statistics.median(ours.saved_s):.2f} s: {ratios[-1]:.3f}"
        )
    report("checkpoints.count", statistics.median(counts), "count")
    report("checkpoints.ratio", statistics.median(ratios), "ratio", goal="<= 1.01")


if __name__ == "__main__":
    main()
