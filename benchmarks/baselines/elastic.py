"""A small DDP job for torchrun: rank 1 kills itself in its first life; rank 0 logs its steps.

`torchrun --nproc-per-node=2 --max-restarts=1 elastic.py LOG`
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main(path: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    model = DistributedDataParallel(torch.nn.Linear(256, 256))
    adamw = torch.optim.AdamW(model.parameters())
    with open(path, "ab", buffering=0) as log:
        for step in range(1, 1 << 40):
            if dist.get_rank() == 1 and life == 0 and step == 20:
                log.write(json.dumps({"life": life, "killed": 1, "time_s": time.monotonic()}).encode() + b"\n")
                os.kill(os.getpid(), signal.SIGKILL)
            model(torch.randn(64, 256)).square().mean().backward()
            adamw.step()
            adamw.zero_grad()
            if dist.get_rank() == 0:
                log.write(json.dumps({"life": life, "step": step, "time_s": time.monotonic()}).encode() + b"\n")
            time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1])
