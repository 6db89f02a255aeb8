"""What `train.compile` is worth: processor time of a microbatch, compiled and not, in turns.

    python benchmarks/compilation.py

Forwards and backwards of all layers by the worker's own compute, on one thread. The median of the ratios of turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from figures import SCRATCH, Figures, note
from sides import make_job

from planaria.job.settings import Job
from planaria.model.load import load_model
from planaria.runtime.worker.compute.device.device import HostDevice
from planaria.runtime.worker.compute.holdings import Holdings

TURNS = 12
WARM = 3
MODELS = {"small": (128, 2, 64), "middle": (768, 1, 128)}
"""Width, windows of a microbatch, and their length."""
JOB = """
[model]
type = "gpt2"
config = {{ n_layer = 6, n_embd = {width}, n_head = 4, n_positions = {length} }}
[data]
source = "python-stdlib"
[train]
steps = 1
global_batch = {windows}
microbatch = {windows}
sequence_length = {length}
[cluster]
nodes = 1
[resilience]
fault_tolerance = 0
"""


def microbatches(job: Job) -> Callable[[], None]:
    """Returns what trains on one microbatch."""
    model = load_model(job.model, job.train, vocab_size=259)
    holdings = Holdings(model, job.train, HostDevice())
    for group in range(len(model.groups)):
        replica = holdings.new_replica(group)
        holdings.initialise(replica, group)
        holdings.put(group, replica)
    holdings.begin_step((0,) * len(model.groups))
    layers = range(len(model.layer_names))
    for layer in layers:
        holdings.compute.add_layer(layer, model.build_layer(layer), holdings.views(layer))
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 256, (job.train.microbatch, job.train.sequence_length), generator=generator)
    batch = {"input_ids": ids, "labels": ids}

    def run() -> None:
        tensors = tuple(batch[name] for name in model.inputs)
        for layer in layers:
            tensors, _ = holdings.compute.forward(1, (0, 0), layer, tensors, batch, keep=True)
        gradients: tuple[torch.Tensor, ...] = ()
        for layer in reversed(layers):
            gradients = holdings.compute.backward(1, (0, 0), layer, gradients, counted=True)

    return run


def seconds(run: Callable[[], None]) -> float:
    began = time.thread_time()
    run()
    return time.thread_time() - began


def main() -> None:
    torch.set_num_threads(1)
    SCRATCH.mkdir(parents=True, exist_ok=True)
    figures = Figures("train.compile")
    for name, (width, windows, length) in MODELS.items():
        text = JOB.format(width=width, windows=windows, length=length)
        plain, compiled = (microbatches(make_job(text, f"train.compile={flag}")) for flag in ("false", "true"))
        began = time.perf_counter()
        compiled()
        first_s = time.perf_counter() - began
        for _ in range(WARM):
            plain()
            compiled()
        turns = [(seconds(plain), seconds(compiled)) for _ in range(TURNS)]
        note(f"{name}: {1e3 * statistics.median(one for one, _ in turns):.1f} ms, first compiled {first_s:.1f} s")
        figures.add(f"compile.{name}.first", first_s, "s")
        ratio = statistics.median(two / one for one, two in turns)
        figures.add(f"compile.{name}.time", ratio, "ratio", samples=TURNS)
    figures.finish(None)


if __name__ == "__main__":
    main()
