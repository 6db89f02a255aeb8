"""Plain torch DistributedDataParallel over gloo, for a job without pipelines. One process of RANK, WORLD_SIZE.

`python ddp.py JOB.json DATA LOG`: trains until it is killed; rank 0 logs its steps.
"""

from __future__ import annotations

import contextlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from whole_model import Layers, StepLog, inputs_of, open_job, optimizer


def main(job_file: str, data_folder: str, log_file: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    job, model, sampler = open_job(job_file, data_folder)
    train = job.train
    whole = Layers(model, train.seed, 0, len(model.layer_names))
    parallel = DistributedDataParallel(whole, gradient_as_bucket_view=True)
    adamw = optimizer(whole, train)
    parameters = list(whole.parameters())
    log = StepLog(log_file) if rank == 0 else None
    share = train.num_microbatches // world
    for step in range(1, 1 << 40):
        losses = []
        for index in range(share):
            batch = sampler.microbatch(step, rank * share + index)
            last = index == share - 1
            with contextlib.nullcontext() if last else parallel.no_sync():
                loss = model.loss((parallel(inputs_of(model, batch)),), batch)
                (loss / share).backward()
            losses.append(float(loss.detach()))
        nn.utils.clip_grad_norm_(parameters, train.clip_norm)
        adamw.step()
        adamw.zero_grad()
        if log is not None:
            log(sum(losses) / share)


if __name__ == "__main__":
    main(*sys.argv[1:])
