"""torch.distributed.pipelining's Schedule1F1B, over gloo or NCCL. One process of RANK, WORLD_SIZE, a stage each.

`python one_f_one_b.py JOB.json DATA LOG CUTS [cpu|cuda]`: layers before each of CUTS ("3,6"; "": none) are one stage.
Trains until it is killed; the last rank logs its steps. Same microbatches, gradient accumulation (in .grad, float32),
clipping by the norm over all stages, fused AdamW.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from whole_model import Layers, StepLog, inputs_of, open_job, optimizer, place_of


def main(job_file: str, data_folder: str, log_file: str, cuts: str, kind: str = "cpu") -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo" if kind == "cpu" else "nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    job, model, sampler = open_job(job_file, data_folder)
    train = job.train
    device = place_of(kind, rank, train)
    bounds = [0, *(int(cut) for cut in cuts.split(",") if cut), len(model.layer_names)]
    assert len(bounds) == world + 1
    module = Layers(model, train.seed, bounds[rank], bounds[rank + 1]).to(device)
    adamw = optimizer(module, train)
    parameters = list(module.parameters())
    count = train.num_microbatches

    def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return model.loss((output,), {"labels": target})

    # Shapes are static: they are inferred once, at the first step.
    stage = PipelineStage(module, rank, world, device)
    schedule = Schedule1F1B(stage, n_microbatches=count, loss_fn=loss_of)
    log = StepLog(log_file) if rank == world - 1 else None
    for step in range(1, 1 << 40):
        batches = [sampler.microbatch(step, index) for index in range(count)]
        losses: list[torch.Tensor] = []
        inputs = [torch.cat([inputs_of(model, batch) for batch in batches]).to(device)] if rank == 0 else []
        labels = torch.cat([batch["labels"] for batch in batches]).to(device) if rank == world - 1 else None
        schedule.step(*inputs, target=labels, losses=losses)
        gradients = [p.grad for p in parameters if p.grad is not None]
        squared = torch.nn.utils.get_total_norm(gradients) ** 2
        dist.all_reduce(squared)
        torch.nn.utils.clip_grads_with_norm_(parameters, train.clip_norm, squared.sqrt())
        adamw.step()
        adamw.zero_grad()
        if log is not None:
            log(float(torch.stack([loss.detach() for loss in losses]).mean()))


if __name__ == "__main__":
    main(*sys.argv[1:])
