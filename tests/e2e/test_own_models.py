"""Models and datasets of the user's on real processes: the reference's bits after kills, and torch's own numbers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from planaria.data.opening import open_data
from planaria.job.parse import load_job, parse_job
from planaria.job.settings import Job
from planaria.model.initial import derive_seed, seeded
from planaria.model.loss import token_cross_entropy
from tests.e2e.conftest import EXAMPLES, Reference, Run
from tests.proof import rest_in_proof

SHORT = ("train.steps=3", "train.warmup_steps=1", "train.global_batch=8", "train.microbatch=2", "eval.every=2")
JOBS = {
    "gnmt": ("translation.toml", "model.config.width=8", "model.config.depth=3", "eval.microbatches=2"),
    "alexnet": ("vision.toml", "model.config.width=0.03125"),
    "vgg19": ("vision.toml", "model.type=vision:vgg19", "model.config.width=0.015625"),
}


@pytest.fixture(autouse=True)
def _examples_on_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    for name in ("vision", "translation"):
        sys.modules.pop(name, None)


def job_of(name: str, *changes: str) -> Job:
    file, *own = JOBS[name]
    return load_job(EXAMPLES / file, [*SHORT, *own, *changes])


@pytest.mark.parametrize("name", rest_in_proof([*JOBS], kept=2))
def test_the_examples_end_with_the_references_bits(name: str, run: Run, reference: Reference) -> None:
    job = job_of(name)
    outcome = run(job, "kill:node=2,step=2,at=backward")
    outcome.assert_same_bits(reference(job))
    assert sorted(outcome.evaluated) == [2, 3]
    assert len(outcome.events("node_lost")) == 1


@pytest.mark.parametrize("name", rest_in_proof(["gnmt", "alexnet"]))
def test_losses_are_those_of_a_plain_loop(name: str, run: Run) -> None:
    """Ten steps with two kills, and the module alone with torch's optimizer and clipping, on the same batches."""
    job = job_of(
        name, "model.config.dropout=0.0", "train.steps=10", "train.warmup_steps=0", "train.lr_schedule=constant",
        "eval.every=0",
    )  # fmt: skip
    outcome = run(job, "kill:node=2,step=3,at=backward", "kill:node=0,step=6,at=sync")
    assert len(outcome.events("node_lost")) == 2
    losses = plain_losses(job)
    assert len(set(losses)) == 10
    assert [outcome.losses[step] for step in range(1, 11)] == pytest.approx(losses, abs=1e-5)


def plain_losses(job: Job) -> list[float]:
    train, (module, _, function) = job.train, job.model.type.partition(":")
    with seeded(derive_seed("initial weights", train.seed)):
        made = getattr(sys.modules.get(module) or __import__(module), function)(**job.model.config)
    model = made if isinstance(made, nn.Module) else nn.Sequential(*made)
    loss_of = getattr(sys.modules[module], "smoothed", token_cross_entropy)
    optimizer = optimizer_of(job, model)
    sampler = open_data(job, Path()).sampler(masked_lm=False)
    losses = []
    for step in range(1, train.steps + 1):
        optimizer.zero_grad()
        found = []
        for index in range(train.num_microbatches):
            batch = sampler.microbatch(step, index)
            taken = ("source", "target") if "source" in batch else ("input",)
            loss = loss_of((model(*(batch[one] for one in taken)),), batch)
            (loss / train.num_microbatches).backward()
            found.append(float(loss.detach()))
        torch.nn.utils.clip_grad_norm_(model.parameters(), train.clip_norm)
        optimizer.step()
        losses.append(sum(found) / len(found))
    return losses


def optimizer_of(job: Job, model: nn.Module) -> torch.optim.Optimizer:
    train = job.train
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": train.weight_decay}, {"params": others, "weight_decay": 0.0}]
    if train.optimizer.value == "sgd":
        return torch.optim.SGD(groups, lr=train.learning_rate, momentum=train.momentum)
    return torch.optim.AdamW(groups, lr=train.learning_rate, betas=train.betas, eps=train.eps)


OWN = """
import torch
from torch import nn

class Shrinking:
    def __len__(self): return 64
    def __getitem__(self, number): return {"input": torch.ones(4 - (number == LATE)), "labels": 1}

LATE = 9

def shrinking(): return Shrinking()
def broken(): raise OSError("the disk is full")
def layers(): return [nn.Linear(4, 4), nn.Linear(4, 2)]
def named(): return [{"image": torch.ones(4), "labels": 1}] * 16
"""


def own_job(folder: Path, source: str) -> Job:
    folder.joinpath("own_things.py").write_text(OWN)
    return parse_job(
        f"""
[model]
type = "own_things:layers"
[data]
source = "own_things:{source}"
[train]
steps = 4
global_batch = 64
microbatch = 8
[cluster]
nodes = 2
""",
        origin="job.toml",
    )


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("broken", r"data.source = 'own_things:broken' fails with OSError: the disk is full"),
        ("named", r"a Linear takes input, and the dataset's items have image, labels"),
    ],
)
def test_a_mistake_is_told_before_anything_starts(source: str, said: str, tmp_path: Path, run: Run) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        run(own_job(tmp_path, source), import_path=tmp_path)
    sys.modules.pop("own_things", None)
    assert "\n" not in str(caught.value)


def test_an_item_that_fails_later_ends_the_run_and_is_named(tmp_path: Path, run: Run) -> None:
    outcome = run(own_job(tmp_path, "shrinking"), import_path=tmp_path)
    sys.modules.pop("own_things", None)
    assert outcome.summary["status"] == "failed"
    assert "item 9 has input of float32 (3,)" in outcome.summary["message"]
