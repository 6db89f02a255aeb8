"""Weights cast to bfloat16 once a step, against once at each use as autocast does: memory, and processor time.

A stage of three blocks of GPT-2 under train.dtype = "bfloat16", with microbatches in flight as in 1F1B. Both ways run
in one process, in turns, on one thread; time is the process's own, so other programs matter little.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch
from figures import Figures
from sides import make_job
from torch import nn

from planaria.job.settings import Job
from planaria.model.load import load_model
from planaria.model.model import Model
from planaria.runtime.measure.allocations import follow_allocations
from planaria.runtime.worker.compute import layers
from planaria.runtime.worker.compute.device.device import HostDevice
from planaria.runtime.worker.compute.layers import Compute
from planaria.runtime.worker.compute.weight_copies import parameter

MB = 1e6
CPU = torch.device("cpu")
STAGE = (1, 2, 3)
MICROBATCHES = 8
JOB = """
[model]
type = "gpt2"
config = {{ n_layer = 4, n_embd = {width}, n_head = 4, n_positions = {length}, attn_pdrop = 0, resid_pdrop = 0 }}
[train]
steps = 1
global_batch = 8
microbatch = 1
sequence_length = {length}
dtype = "bfloat16"
[cluster]
nodes = 1
[resilience]
fault_tolerance = 0
"""


class Stage:
    """The middle layers of the model, and one microbatch's activations that all are given."""

    def __init__(self, model: Model, job: Job, width: int) -> None:
        self._compute = Compute(model, job.train, HostDevice(), lambda layer, gradients: None, lambda: 1.0)
        for layer in STAGE:
            module = model.build_layer(layer)
            values = {name: value.detach() for name, value in module.named_parameters(remove_duplicate=False)}
            self._compute.add_layer(layer, module, values)
        draw = torch.Generator().manual_seed(1)
        self._given = (torch.randn(1, job.train.sequence_length, width, generator=draw),)

    def forward(self, microbatch: int) -> None:
        value = self._given
        for layer in STAGE:
            value, _ = self._compute.forward(1, (microbatch, 1), layer, value, None, keep=True)

    def backward(self, microbatch: int) -> None:
        gradients = self._given
        for layer in reversed(STAGE):
            gradients = self._compute.backward(1, (microbatch, 1), layer, gradients, counted=True)

    def step(self, in_flight: int) -> float:
        """Processor seconds of a step."""
        began = time.process_time()
        self._compute.forget(lambda work: False)
        for microbatch in range(MICROBATCHES + in_flight):
            if microbatch >= in_flight:
                self.backward(microbatch - in_flight)
            if microbatch < MICROBATCHES:
                self.forward(microbatch)
        return time.process_time() - began

    def kept_bytes(self, in_flight: int) -> int:
        """Bytes that so many forwards leave."""
        self._compute.forget(lambda work: False)
        with follow_allocations(CPU) as allocations:
            for microbatch in range(in_flight):
                self.forward(microbatch)
            return allocations.live_bytes()


def compare(figures: Figures, width: int, length: int, in_flight: int, rounds: int) -> None:
    job = make_job(JOB.format(width=width, length=length))
    model = load_model(job.model, job.train, vocab_size=257)
    stages = {}
    for name, make in (("each-use", nn.Parameter), ("once", parameter)):
        layers.parameter = make  # type: ignore[assignment]
        stages[name] = Stage(model, job, width)
    title = f"copies.{width}-wide-{length}-tokens"
    for name, stage in stages.items():
        for number in (1, in_flight):
            figures.add(f"{title}.{name}.kept-by-{number}", stage.kept_bytes(number) / MB, "MB")
        stage.step(in_flight)
    turns = [[stage.step(in_flight) for stage in stages.values()] for _ in range(rounds)]
    for name, found in zip(stages, zip(*turns, strict=True), strict=True):
        figures.add(f"{title}.{name}.step", statistics.median(found) * 1e3, "ms", samples=rounds)
    ratio = statistics.median(once / each for each, once in turns)
    figures.add(f"{title}.step-once-over-each-use", ratio, "ratio", goal="<= 1.0", samples=rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--in-flight", type=int, default=4, help="microbatches in flight (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    given = parser.parse_args()
    torch.set_num_threads(1)
    figures = Figures("copies")
    for width, length in ((256, 64), (768, 32), (768, 128)):
        compare(figures, width, length, given.in_flight, given.rounds)
    figures.finish(given.json)


if __name__ == "__main__":
    sys.exit(main())
