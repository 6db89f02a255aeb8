"""A job's model as plain torch modules, for the baselines: the same layers, initial weights, data and optimizer."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import IO

import torch
from torch import nn

from planaria.data.opening import open_data
from planaria.data.sampler import Sampler
from planaria.job.parse import job_from_json
from planaria.job.sections.train import DType, TrainSection
from planaria.job.settings import Job
from planaria.model.load import load_model
from planaria.model.model import Batch, Model


class Layers(nn.Module):
    """Layers [first, end) of a model in a row, initialised like the job's; tied parameters are shared."""

    def __init__(self, model: Model, seed: int, first: int, end: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(model.build_layer(layer) for layer in range(first, end))
        for group, spec in enumerate(model.groups):
            held = [(p, uses) for p in spec.parameters if (uses := [u for u in p.uses if first <= u[0] < end])]
            if not held:
                continue
            state = model.initial_state(group, seed)
            for parameter, uses in held:
                shared = nn.Parameter(state[parameter.name].clone())
                for layer, local in uses:
                    path, _, last = local.rpartition(".")
                    self.layers[layer - first].get_submodule(path).register_parameter(last, shared)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            value = layer(value)
        return value


def open_job(job_file: str, data_folder: str) -> tuple[Job, Model, Sampler]:
    """The job, its model and what deals its microbatches."""
    job = job_from_json(Path(job_file).read_bytes())
    data = open_data(job, Path(data_folder))
    model = load_model(job.model, job.train, vocab_size=data.vocab_size)
    return job, model, data.sampler(masked_lm=model.masked_lm)


def place_of(kind: str, rank: int, train: TrainSection) -> torch.device:
    """Where a rank computes: "cpu" or "cuda"; products as the job has them."""
    if kind == "cpu":
        return torch.device("cpu")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = train.dtype is DType.TF32
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    return device


def optimizer(module: nn.Module, train: TrainSection) -> torch.optim.AdamW:
    """Fused AdamW; weight decay on parameters with two or more dimensions, as in a job."""
    decayed = [p for p in module.parameters() if p.dim() >= 2]
    others = [p for p in module.parameters() if p.dim() < 2]
    groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(
        groups, lr=train.learning_rate, betas=train.betas, eps=train.eps, weight_decay=train.weight_decay, fused=True
    )


class StepLog:
    """Appends each step's duration, from one call to the next, to a file of JSON lines."""

    def __init__(self, path: str) -> None:
        self._file: IO[bytes] = Path(path).open("ab", buffering=0)  # noqa: SIM115 (open until the process ends)
        self._began = time.perf_counter()

    def __call__(self, loss: float) -> None:
        now = time.perf_counter()
        self._file.write(json.dumps({"duration_s": now - self._began, "loss": loss}).encode() + b"\n")
        self._began = now


def inputs_of(model: Model, batch: Batch) -> torch.Tensor:
    (name,) = model.inputs
    return batch[name]
