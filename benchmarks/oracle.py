"""Losses of runs with kills, beside a plain loop that shares nothing with them: every family's own class whole.

    python benchmarks/oracle.py [--families gpt2 t5 ...]

For each family: 20 steps in exact numerics on 5 nodes, of which two are killed, against Hugging Face's class in
float32 on one thread, torch's cross entropy, AdamW and clip_grad_norm_. Both begin with the same folder of weights,
and are given the same microbatches. The figure is the largest difference of a step's losses, over the loss.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
from pathlib import Path
from typing import Any

import torch
from figures import SCRATCH, Figures, note
from oracle_families import FAMILIES, IMAGES, MASKED, SENTENCES
from sides import make_job
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_
from transformers.utils.logging import disable_progress_bar

import planaria
from planaria.data.opening import open_data
from planaria.job.settings import Job
from planaria.runtime.run_folder.run_folder import RunFolder

GOAL = 1e-5
FAULTS = ("kill:node=2,step=5,at=backward", "kill:node=0,step=12,at=sync")
TEXT_BATCHES = "global_batch = 8\nmicrobatch = 2\nsequence_length = 32"
IMAGE_BATCHES = "global_batch = 32\nmicrobatch = 8"
JOB = """
[model]
type = "auto"
weights = "{weights}"
[data]
source = "{source}"
[train]
steps = 20
{batches}
learning_rate = {learning_rate}
lr_schedule = "constant"
warmup_steps = 5
betas = [0.9, 0.95]
eps = 1e-8
weight_decay = 0.1
clip_norm = 1.0
seed = 3
[cluster]
nodes = 5
[resilience]
fault_tolerance = 1
min_nodes_per_pipeline = 2
"""


def measure(family: str, figures: Figures) -> None:
    """Trains a family both ways."""
    place = SCRATCH / "oracle" / f"{family}-{secrets.token_hex(4)}"
    model = FAMILIES[family].build()
    model.save_pretrained(place / "weights")
    job = job_of(family, place)
    result = planaria.train(job, name=place.name, faults=FAULTS, import_path=Path(__file__).parent)
    kills = len(result.recoveries)
    assert result.status.value == "completed", f"{family}: {result.message}"
    assert kills == len(FAULTS), f"{family}: {kills} of {len(FAULTS)} kills"
    found = losses_of(result.folder)
    expected = plain_losses(family, model, job, RunFolder(result.folder).data)
    worst = max(abs(one - two) / two for one, two in zip(found, expected, strict=True))
    note(f"{family}: {len(found)} steps, {expected[0]:.4f} to {expected[-1]:.4f}, {kills} kills")
    figures.add(f"oracle.{family}.largest-difference", worst, "ratio", goal=f"<= {GOAL}", samples=len(found))
    for folder in (place, result.folder):
        shutil.rmtree(folder)


def job_of(family: str, place: Path) -> Job:
    is_image = FAMILIES[family].head == IMAGES
    (place / "text.txt").write_text("".join(f"{n} bottles of beer, {n * n} of milk.\n" for n in range(400)))
    source = "oracle_families:images" if is_image else str(place / "text.txt")
    batches = IMAGE_BATCHES if is_image else TEXT_BATCHES
    rate = FAMILIES[family].learning_rate
    return make_job(JOB.format(weights=place / "weights", source=source, batches=batches, learning_rate=rate))


def losses_of(folder: Path) -> list[float]:
    """Of each step, in order; of one that was trained twice, the last."""
    entries = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    by_step = {entry["step"]: float(entry["loss"]) for entry in entries if "loss" in entry}
    return [by_step[step] for step in sorted(by_step)]


def plain_losses(family: str, model: Any, job: Job, data: Path) -> list[float]:
    """The loop: no layers, no plan and no sums over workers."""
    train, head = job.train, FAMILIES[family].head
    sampler = open_data(job, data).sampler(masked_lm=head == MASKED, has_encoder=head == SENTENCES)
    parameters = list(model.parameters())
    groups = [
        {"params": [one for one in parameters if one.dim() >= 2], "weight_decay": train.weight_decay},
        {"params": [one for one in parameters if one.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=train.learning_rate, betas=train.betas, eps=train.eps)
    warming = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: min(1.0, (done + 1) / train.warmup_steps))
    model.train()
    losses = []
    for step in range(1, train.steps + 1):
        total = 0.0
        for number in range(train.num_microbatches):
            batch = sampler.microbatch(step, number)
            names = ["pixel_values" if head == IMAGES else "input_ids", *(["labels"] if head == SENTENCES else [])]
            logits = model(**{name: batch[name] for name in names}).logits
            loss = functional.cross_entropy(logits.flatten(0, -2), batch["labels"].flatten(), ignore_index=-100)
            (loss / train.num_microbatches).backward()
            total += float(loss.detach())
        clip_grad_norm_(parameters, train.clip_norm)
        optimizer.step()
        warming.step()
        optimizer.zero_grad()
        losses.append(total / train.num_microbatches)
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES), metavar="FAMILY",
                        help=f"of {', '.join(FAMILIES)} (default: all)")  # fmt: skip
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    given = parser.parse_args()
    torch.set_num_threads(1)
    disable_progress_bar()
    figures = Figures("oracle")
    for family in given.families:
        measure(family, figures)
    figures.finish(given.json)


if __name__ == "__main__":
    main()
