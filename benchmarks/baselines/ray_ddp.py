"""A DDP job of a small GPT-2 on Ray Train: rank 0 logs its steps, and saves every so many.

`python ray_ddp.py ADDRESS FOLDER WORKERS STEPS CHECKPOINT_EVERY`; the log is FOLDER/steps.jsonl.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def train_loop(settings: dict[str, Any]) -> None:
    import os
    import secrets

    import ray.train
    import torch
    import transformers

    torch.set_num_threads(1)
    context = ray.train.get_context()
    rank, life = context.get_world_rank(), secrets.token_hex(4)
    config = transformers.GPT2Config(
        vocab_size=256, n_layer=4, n_embd=64, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0
    )
    model = ray.train.torch.prepare_model(transformers.GPT2LMHeadModel(config))
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = 1
    if (checkpoint := ray.train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            kept = torch.load(os.path.join(folder, "state.pt"))
        model.load_state_dict(kept["model"])
        adamw.load_state_dict(kept["adamw"])
        first = kept["step"] + 1
    with open(settings["log"], "ab", buffering=0) as log:
        log.write(json.dumps({"life": life, "rank": rank, "pid": os.getpid(), "raylet": os.getppid()}).encode() + b"\n")
        for step in range(first, settings["steps"] + 1):
            tokens = torch.randint(256, (12 // context.get_world_size(), 32))
            model(tokens, labels=tokens).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adamw.step()
            adamw.zero_grad()
            if rank == 0:
                log.write(json.dumps({"life": life, "step": step, "time_s": time.time()}).encode() + b"\n")
            if step % settings["every"] == 0:
                with tempfile.TemporaryDirectory() as folder:
                    saved = None
                    if rank == 0:
                        state = {"model": model.state_dict(), "adamw": adamw.state_dict(), "step": step}
                        torch.save(state, os.path.join(folder, "state.pt"))
                        saved = ray.train.Checkpoint.from_directory(folder)
                    ray.train.report({"step": step}, checkpoint=saved)


def main(address: str, folder: str, workers: int, steps: int, every: int) -> None:
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    TorchTrainer(
        train_loop,
        train_loop_config={"log": str(Path(folder) / "steps.jsonl"), "steps": steps, "every": every},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(
            num_workers=workers, resources_per_worker={"CPU": 1}, placement_strategy="STRICT_SPREAD"
        ),
        run_config=RunConfig(name="ddp", storage_path=folder, failure_config=FailureConfig(max_failures=3)),
    ).fit()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
