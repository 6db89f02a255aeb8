"""What `wire.py` measures, and how much of it: the job, its forms, and hosts behind links of a given rate."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hosts import Farm, farm
from made_up import UNTIED_GPT2

JOB = f"""{UNTIED_GPT2}[train]
steps = 1_000_000
microbatch = 1
sequence_length = 64
lr_schedule = "constant"
[resilience]
policy = "templates"
when_exhausted = "wait"
[run]
checkpoint_every = 0 # as the baselines
"""
NUM_LAYERS = 6
NUMERICS = ("fast", "exact")
STEP_GOAL = {"fast": "<= 1.0", "exact": "<= 1.1"}
GBIT = 1e9
PATIENCE_STEPS = 200
LONG_GBITS = 1.0
SETTLED = 20
"""Steps after which an estimate should have learnt what the links are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is measured.

    Attributes:
        replicas: numbers of them.
        gbits: rates of links in Gbit/s.
        delays_ms: that links take beside what those of this machine do (some 0.1 ms); only up to LONG_GBITS, since
            frames of long links pass through a process.
        turns: of each side of a comparison, in turns.
        steps: counted in each.
        bytes_steps: of which bytes are counted.
        kills: in a run.
        nodes: numbers of them of which all plans are tried.
        cuts: plans of each set of pipeline sizes that are tried; 0: all.
        rivals: plans that are tried again beside the chosen one.
    """

    replicas: Sequence[int] = (2, 4, 8)
    gbits: Sequence[float] = (0.2, 1.0, 10.0)
    delays_ms: Sequence[float] = (0.0, 5.0)
    turns: int = 4
    steps: int = 3
    bytes_steps: int = 30
    kills: int = 7
    nodes: Sequence[int] = (3, 4)
    cuts: int = 0
    rivals: int = 3

    @property
    def links(self) -> list[tuple[float, float, str]]:
        """Rates and delays of links, and a name for each."""
        pairs = [(rate, delay) for delay in self.delays_ms for rate in self.gbits if not delay or rate <= LONG_GBITS]
        return [(rate, delay, f"{rate:g}-Gbit/s" + (f"-{delay:g}-ms" if delay else "")) for rate, delay in pairs]


SHORT = Size(
    replicas=(4,), gbits=(1.0,), delays_ms=(0.0,), turns=2, steps=3, bytes_steps=8, kills=2, nodes=(4,), cuts=2
)


# What runs of it look like


def replicas(count: int, numerics: str) -> list[str]:
    """Overrides for so many pipelines of one stage, of two microbatches each."""
    return [
        f"train.global_batch={2 * count}",
        f'train.numerics="{numerics}"',
        f"resilience.fault_tolerance={count - 1}",
        "resilience.min_nodes_per_pipeline=1",
    ]


def one_pipeline(count: int, numerics: str) -> list[str]:
    """Overrides for one pipeline of so many stages, of two microbatches for each."""
    return [
        "train.microbatch=4",
        f"train.global_batch={8 * count}",
        f'train.numerics="{numerics}"',
        "resilience.fault_tolerance=0",
        f"resilience.min_nodes_per_pipeline={count}",
    ]


@contextlib.contextmanager
def hosts(count: int, gbits: float, delay_ms: float = 0.0) -> Iterator[Farm]:
    """So many hosts for workers, behind links of that rate and length."""
    with tempfile.TemporaryDirectory() as folder, farm(count + 1, Path(folder), delay_s=delay_ms / 1e3) as made:
        made.network.limit(gbits * GBIT)
        yield made
