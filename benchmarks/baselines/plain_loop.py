"""A plain loop of torch's: one process, the whole model, gradients accumulated in .grad. Nothing can fail here.

`python plain_loop.py JOB.json DATA LOG [cpu|cuda]`: trains until it is killed, and logs its steps.
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from whole_model import Layers, StepLog, inputs_of, open_job, optimizer, place_of


def main(job_file: str, data_folder: str, log_file: str, kind: str = "cpu") -> None:
    torch.set_num_threads(1)
    job, model, sampler = open_job(job_file, data_folder)
    train = job.train
    device = place_of(kind, 0, train)
    whole = Layers(model, train.seed, 0, len(model.layer_names)).to(device)
    adamw = optimizer(whole, train)
    parameters, count, log = list(whole.parameters()), train.num_microbatches, StepLog(log_file)
    for step in range(1, 1 << 40):
        losses = []
        for index in range(count):
            batch = {name: value.to(device) for name, value in sampler.microbatch(step, index).items()}
            loss = model.loss((whole(inputs_of(model, batch)),), batch)
            (loss / count).backward()
            losses.append(loss.detach())
        nn.utils.clip_grad_norm_(parameters, train.clip_norm)
        adamw.step()
        adamw.zero_grad()
        log(float(torch.stack(losses).mean()))


if __name__ == "__main__":
    main(*sys.argv[1:])
