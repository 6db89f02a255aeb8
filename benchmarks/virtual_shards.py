"""What `model.virtual_shards` costs: processor time of a microbatch in V shards beside whole, in turns.

    python benchmarks/virtual_shards.py

Forwards and backwards of all layers by the worker's own compute, on one thread. The median of the ratios of turns.
"""

from __future__ import annotations

import statistics

import torch
from compilation import microbatches, seconds
from figures import SCRATCH, Figures
from sides import make_job

TURNS = 12
WARM = 2
LENGTH = 128
WIDTHS = (256, 768, 2048)
SHARDS = (4, 8)
DTYPES = ("float32", "bfloat16")
MODELS = {
    "gpt2": "{{ n_layer = 2, n_embd = {width}, n_head = 8, n_positions = {length} }}",
    "llama": "{{ num_hidden_layers = 2, hidden_size = {width}, intermediate_size = {inner}, num_attention_heads = 8, "
    "num_key_value_heads = 2, max_position_embeddings = {length} }}",
}
JOB = """
[model]
type = "{kind}"
config = {config}
[data]
source = "python-stdlib"
[train]
steps = 1
global_batch = 4
microbatch = 4
sequence_length = {length}
[cluster]
nodes = 1
[resilience]
fault_tolerance = 0
"""


def main() -> None:
    torch.set_num_threads(1)
    SCRATCH.mkdir(parents=True, exist_ok=True)
    figures = Figures("model.virtual_shards")
    for kind, pattern in MODELS.items():
        for width in WIDTHS:
            config = pattern.format(width=width, inner=8 * width // 3 // 32 * 32, length=LENGTH)
            text = JOB.format(kind=kind, config=config, length=LENGTH)
            for dtype in DTYPES:
                sides = [
                    microbatches(make_job(text, f"model.virtual_shards={number}", f"train.dtype={dtype}"))
                    for number in (0, *SHARDS)
                ]
                for _ in range(WARM):
                    for run in sides:
                        run()
                turns = [[seconds(run) for run in sides] for _ in range(TURNS)]
                for at, number in enumerate(SHARDS, start=1):
                    ratio = statistics.median(turn[at] / turn[0] for turn in turns)
                    figures.add(f"shards.{kind}.{width}.{dtype}.{number}", ratio, "ratio", samples=TURNS)
    figures.finish(None)


if __name__ == "__main__":
    main()
