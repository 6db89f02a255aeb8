"""What rounding at the boundaries between layers costs in loss, and saves on a wire (`train.boundary_dtype`).

loss: the same job with boundaries of float32 and of bfloat16, for several seeds, in one process alone: the mean loss
    of its last steps, rounded less not rounded; and how far apart seeds are, to compare it with.
wire: a pipeline of 4 stages over 4 hosts behind limited links, in turns: steps, and bytes that workers sent in one.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from figures import Figures, note
from hosts import NoNamespaces, cluster
from interleave import interleave, ratios, step_time_s
from sides import make_job
from wire import sent_in_a_step
from wire_cases import JOB, Size, hosts, one_pipeline

from planaria.runtime.launch.reference import train_reference
from planaria.runtime.run_folder.run_folder import RunFolder

DTYPES = ("float32", "bfloat16")
LOSS_JOB = """
[model]
type = "gpt2"
config = { n_layer = 6, n_embd = 64, n_head = 4, n_positions = 64 }
[train]
steps = 300
global_batch = 8
microbatch = 8
sequence_length = 64
learning_rate = 1e-3
warmup_steps = 20
[cluster]
nodes = 1
[resilience]
fault_tolerance = 0
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """How much is measured: seeds, steps of each, and the last of them that count; rates of links in Gbit/s."""

    seeds: int = 5
    steps: int = 300
    last: int = 50
    gbits: Sequence[float] = (0.1, 1.0)


def rounding(dtype: str) -> str:
    return f'train.boundary_dtype="{dtype}"'


def loss(figures: Figures, amount: Amount) -> None:
    for dtype in DTYPES:
        ends = {
            boundary: [last_loss(amount, seed, f'train.dtype="{dtype}"', rounding(boundary)) for seed in seeds(amount)]
            for boundary in DTYPES
        }
        differences = [two - one for one, two in zip(ends["float32"], ends["bfloat16"], strict=True)]
        note(f"{dtype}: rounded less not rounded, by seed: {' '.join(f'{each:+.4f}' for each in differences)}")
        name = f"boundary.loss.{dtype}"
        figures.add(f"{name}.not-rounded", statistics.mean(ends["float32"]), "nats", samples=amount.seeds)
        figures.add(f"{name}.rounded-less-not", statistics.mean(differences), "nats", samples=amount.seeds)
        figures.add(f"{name}.deviation-of-that", statistics.stdev(differences), "nats", samples=amount.seeds)
        figures.add(f"{name}.deviation-of-seeds", statistics.stdev(ends["float32"]), "nats", samples=amount.seeds)


def seeds(amount: Amount) -> range:
    return range(1, amount.seeds + 1)


def last_loss(amount: Amount, seed: int, *overrides: str) -> float:
    """Mean loss of the last steps of a job that one process trains."""
    job = make_job(LOSS_JOB, f"train.seed={seed}", f"train.steps={amount.steps}", *overrides)
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder.create(Path(place), "run")
        train_reference(job, folder)
        lines = (folder.path / "metrics.jsonl").read_text().splitlines()
    return statistics.mean(json.loads(line)["loss"] for line in lines[-amount.last :])


def wire(figures: Figures, amount: Amount) -> None:
    size = Size()
    for dtype in DTYPES:
        job = [*one_pipeline(4, "exact"), rounding(dtype)]
        sent_in_a_step(figures, f"boundary.bytes.{dtype}", 4, job, size)
    for gbits in amount.gbits:
        name = f"boundary.step.{gbits:g}-Gbit/s"
        with hosts(4, gbits) as made:
            wide, narrow = (cluster(made, dtype, JOB, *one_pipeline(4, "exact"), rounding(dtype)) for dtype in DTYPES)
            interleave([wide, narrow], turns=size.turns, steps=size.steps, warm_up=4, patience=1)
            samples = size.turns * size.steps
            figures.add(f"{name}.not-rounded", step_time_s(wide) * 1e3, "ms", samples=samples)
            figures.add(f"{name}.rounded", step_time_s(narrow) * 1e3, "ms", samples=samples)
            found = statistics.median(ratios(narrow, wide))
            figures.add(f"{name}.rounded-over-not", found, "ratio", goal="<= 1.0", samples=size.turns)
            for side in (wide, narrow):
                shutil.rmtree(side.folder.path)


PARTS = {"loss": loss, "wire": wire}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--seeds", type=int, default=Amount().seeds, help="of the losses (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=Amount().steps, help="of each (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    given = parser.parse_args()
    if unknown := set(given.parts) - PARTS.keys():
        parser.error(f"there is no part {' '.join(sorted(unknown))}")
    figures = Figures("boundary")
    try:
        for name in given.parts or PARTS:
            PARTS[name](figures, Amount(seeds=given.seeds, steps=given.steps))
    except NoNamespaces as reason:
        note(f"network namespaces cannot be made here: {reason}")
    figures.finish(given.json)


if __name__ == "__main__":
    sys.exit(main())
