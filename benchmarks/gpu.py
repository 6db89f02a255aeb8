"""Planaria on a GPU: steps, bits, a loss, redundant computation and memory, written to docs/figures/benchmarks-gpu.md.

    python benchmarks/gpu.py              needs a CUDA device; without one it says so and ends with status 2
    python benchmarks/gpu.py --stand-in   the same way with tiny models on the stand-in for a GPU, for its own test

All workers of a job share one GPU, or take one each where there are more.
"""

from __future__ import annotations

import argparse
import os
import secrets
import statistics
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import torch
from figures import SCRATCH, Figures, note
from memory import plans_of
from redundancy import MODELS as BAMBOO
from redundancy import NAMES
from sides import make_job, torch_side
from token_ids import train_tokenizer

import planaria
from planaria.estimate.memory import memory_use
from planaria.job.sections.cluster import TransportKind
from planaria.job.settings import Job
from planaria.job.version import __version__
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.plan import WorkerId
from planaria.protocol.messages.records import AnyRecord, Recovered, StepCommitted
from planaria.protocol.messages.user import Wish
from planaria.runtime.component_settings import job_profile
from planaria.runtime.coordinator.client import Contact, NotReached, ask
from planaria.runtime.run_folder.run_folder import RunFolder

PAGE = Path(__file__).parents[1] / "docs" / "figures" / "benchmarks-gpu.md"
GB = 1e9
JOB = """
[model]
{model}
[data]
tokenizer = "{tokenizer}"
[train]
steps = {steps}
global_batch = {batch}
microbatch = {microbatch}
sequence_length = {length}
warmup_steps = 2
[cluster]
device = "{device}"
"""
MODELS = {
    "GPT-2 345M": 'type = "gpt2"\nconfig = { n_layer = 24, n_embd = 1024, n_head = 16 }',
    "Llama 1B": """type = "llama"
config = { num_hidden_layers = 16, hidden_size = 2048, intermediate_size = 8192, num_attention_heads = 32, \
num_key_value_heads = 8 }""",
}
SHADOWED = {
    "BERT-Large": """type = "bert"
config = { num_hidden_layers = 24, hidden_size = 1024, num_attention_heads = 16, intermediate_size = 4096 }"""
}
"""Bamboo's model."""
TINY_SHADOWED = {
    "BERT, tiny": """type = "bert"
config = { num_hidden_layers = 3, hidden_size = 16, num_attention_heads = 2, intermediate_size = 32 }"""
}
TINY = {"GPT-2, tiny": 'type = "gpt2"\nconfig = { n_layer = 2, n_embd = 16, n_head = 2, n_positions = 8 }'}
VOCABULARY = 50_257


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large everything is.

    Attributes:
        models: by their names; the first has losses, too.
        shadowed: the one that has shadows.
        tokenizer: "bytes", or a file.
        torch_kind: what the baselines compute on.
        fast: what is set where bits do not matter, with products in `fast_dtype`.
        ranks: of Schedule1F1B, a GPU each.
    """

    device: str
    torch_kind: str
    models: dict[str, str]
    shadowed: dict[str, str]
    tokenizer: str
    fast: tuple[str, ...]
    fast_dtype: str
    ranks: int
    steps: int
    warm_up: int
    batch: int
    microbatch: int
    length: int

    def job(self, model: str, *overrides: str) -> Job:
        text = JOB.format(
            model={**self.models, **self.shadowed}[model],
            tokenizer=self.tokenizer,
            steps=self.steps,
            batch=self.batch,
            microbatch=self.microbatch,
            length=self.length,
            device=self.device,
        )
        return make_job(text, *overrides)


def scale_of_gpu() -> Scale:
    tokenizer = SCRATCH / "gpu" / "tokenizer.json"
    tokenizer.parent.mkdir(parents=True, exist_ok=True)
    train_tokenizer(tokenizer, VOCABULARY, 30_000_000, ["<|endoftext|>", "[MASK]"])
    return Scale(
        device="cuda",
        torch_kind="cuda",
        models=MODELS,
        shadowed=SHADOWED,
        tokenizer=str(tokenizer),
        fast=('train.numerics="fast"', 'train.dtype="tf32"'),
        fast_dtype="tf32",
        ranks=min(2, torch.cuda.device_count()),
        steps=12,
        warm_up=4,
        batch=32,
        microbatch=4,
        length=512,
    )


def scale_of_stand_in() -> Scale:
    return Scale(
        device="stand-in",
        torch_kind="cpu",
        models=TINY,
        shadowed=TINY_SHADOWED,
        tokenizer="bytes",
        fast=('train.numerics="fast"',),
        fast_dtype="float32",
        ranks=1,
        steps=3,
        warm_up=1,
        batch=4,
        microbatch=1,
        length=8,
    )


@dataclass(slots=True)
class Watched:
    """One run of ours: its records, and the most memory that each worker told of."""

    folder: RunFolder
    weights: str = ""
    records: list[AnyRecord] = field(default_factory=list)
    held: dict[int, int] = field(default_factory=dict)

    def __call__(self, record: AnyRecord, time_s: float) -> None:
        self.records.append(record)
        if isinstance(record, StepCommitted):
            self._ask()

    def _ask(self) -> None:
        try:
            answer = ask(Contact.read(self.folder.contact), Wish.STATUS, run=self.folder.path.name, details=True)
        except (NotReached, OSError):
            return
        for worker, word in answer.details.workers.items() if answer.details is not None else ():
            self.held[worker] = max(self.held.get(worker, 0), word.held_bytes)

    def step_s(self, warm_up: int) -> float:
        """Median of the steps after the first ones."""
        steps = [record for record in self.records if isinstance(record, StepCommitted) and record.step > warm_up]
        return statistics.median(record.duration_s for record in steps)


def train(job: Job, faults: Sequence[str] = ()) -> Watched:
    name = f"gpu-{secrets.token_hex(4)}"
    watched = Watched(RunFolder(Path(job.run.folder) / name))
    result = planaria.train(job, name=name, faults=faults, observers=[watched])
    if result.status.value != "completed":
        raise SystemExit(f"{watched.folder.path}: {result.message}")
    watched.weights = result.weights_sha256 or ""
    return watched


def torch_step_s(scale: Scale, job: Job, script: str, ranks: int, *arguments: str) -> float:
    side = torch_side(Path(script).stem, script, job, ranks, [*arguments, scale.torch_kind])
    side.start()
    try:
        return statistics.median(side.steps(scale.steps, timeout_s=1200.0)[scale.warm_up :])
    finally:
        side.kill()


@dataclass(frozen=True, slots=True)
class Results:
    """Figures, and runs whose memory is looked at when all is done."""

    figures: Figures
    runs: list[tuple[str, Job, Watched]] = field(default_factory=list)


# What is measured; each returns a table of the page


def steps(scale: Scale, results: Results) -> list[str]:
    """A step of one worker in fast and exact numerics, against torch's."""
    rows = ["| model | plain loop | Schedule1F1B | fast | exact |", "|---|---|---|---|---|"]
    for name in scale.models:
        alone = ("cluster.nodes=1", "resilience.fault_tolerance=0")
        fast = scale.job(name, *alone, *scale.fast)
        layers = len(train_layers(fast))
        cuts = ",".join(str(layers * rank // scale.ranks) for rank in range(1, scale.ranks))
        exact = scale.job(name, *alone)
        run = train(exact)
        results.runs.append((f"{name}, one worker", exact, run))
        taken = {
            "plain loop": torch_step_s(scale, fast, "plain_loop.py", 1),
            "Schedule1F1B": torch_step_s(scale, fast, "one_f_one_b.py", scale.ranks, cuts),
            "fast": train(fast).step_s(scale.warm_up),
            "exact": run.step_s(scale.warm_up),
        }
        for what, seconds in taken.items():
            results.figures.add(f"gpu.{name}.{what}.step", seconds, "s", samples=scale.steps - scale.warm_up)
        rows.append(f"| {name} | {' | '.join(f'{1e3 * seconds:.1f} ms' for seconds in taken.values())} |")
    gpus = "one GPU" if scale.ranks == 1 else f"{scale.ranks} GPUs, a stage each"
    return [
        f"Of Planaria one worker, which nothing can be lost of; Schedule1F1B on {gpus}, the others on one. Medians of "
        f"{scale.steps - scale.warm_up} steps; fast numerics and torch's in {scale.fast_dtype}.",
        "",
        *rows,
    ]


def train_layers(job: Job) -> tuple[str, ...]:
    """The names of the model's layers."""
    from planaria.model.load import load_model

    return load_model(job.model, job.train, vocab_size=259).layer_names


def bits(scale: Scale, results: Results) -> list[str]:
    """A run in which a node is killed, against the reference, on the same kind of device."""
    job = scale.job(next(iter(scale.models)), "cluster.nodes=3", "resilience.min_nodes_per_pipeline=1")
    run = train(job, [f"kill:node=1,step={scale.warm_up + 1},at=backward"])
    alone = planaria.reference(job).weights_sha256
    (recovered,) = [record.recovery for record in run.records if isinstance(record, Recovered)]
    is_same = run.weights == alone
    results.figures.add("gpu.bits.same", is_same, "count", goal=">= 1")
    results.figures.add("gpu.recovery.resume", recovered.resume_ms, "ms")
    return [
        f"Three workers, one of which is killed in a backward: weights are "
        f"{'those of the reference, to the bit' if is_same else 'NOT those of the reference'}.",
        "",
        "| from the kill to | ms |",
        "|---|---|",
        f"| its detection | {recovered.detect_ms or 0.0:.0f} |",
        f"| the next commit | {recovered.resume_ms:.0f} |",
        f"| an undisturbed step, for comparison | {1e3 * run.step_s(scale.warm_up):.0f} |",
    ]


def shadows(scale: Scale, results: Results) -> list[str]:
    """What each mode of redundancy costs in every step: Bamboo's Table 4. Eager forwards of shadows are beside
    computation, and what they keep goes to the host meanwhile."""
    (model,) = scale.shadowed
    grid = ("cluster.nodes=4", "resilience.min_nodes_per_pipeline=2", 'cluster.schedule="1f1b"')
    job = scale.job(model, *grid, 'resilience.policy="templates"')
    run = train(job)
    results.runs.append((f"{model}, four workers", job, run))
    base = run.step_s(scale.warm_up)
    rows = [
        "| mode | step | overhead | Bamboo's Table 4 | most that a worker held |",
        "|---|---|---|---|---|",
        f"| none | {base:.3f} s | | | {most_gb(run)} |",
    ]
    for mode, name in NAMES.items():
        redundant = ('resilience.policy="redundancy"', f'resilience.redundancy="{mode.value}"')
        job = scale.job(model, *grid, *redundant)
        run = train(job)
        results.runs.append((f"{model}, {name}", job, run))
        seconds = run.step_s(scale.warm_up)
        results.figures.add(f"gpu.shadows.{name}.overhead", seconds / base - 1, "ratio")
        overhead, paper = f"{seconds / base - 1:+.1%}", f"{BAMBOO[0].paper[mode]:+.1%}"
        rows.append(f"| {name} | {seconds:.3f} s | {overhead} | {paper} | {most_gb(run)} |")
    about = f"Two pipelines of two workers each, {model}. The paper has 4 of 8, a GPU each."
    if scale.device == "cuda" and torch.cuda.device_count() < 4:
        about += " Workers that share a GPU leave it no bubbles: what is computed twice takes its whole time here."
    return [about, "", *rows]


def ways(scale: Scale, results: Results) -> list[str]:
    """What a step takes by each way of messages and sums between the workers."""
    model = next(iter(scale.models))
    kinds = [TransportKind.AUTO, TransportKind.TCP]
    if scale.device == "cuda" and torch.cuda.device_count() > 1:
        kinds.append(TransportKind.NCCL)
    rows = [f"| | {' | '.join(kinds)} |", "|---" * (len(kinds) + 1) + "|"]
    for name, smallest in {"two stages": 2, "two replicas": 1}.items():
        taken = []
        for kind in kinds:
            shape = ("cluster.nodes=2", f"resilience.min_nodes_per_pipeline={smallest}")
            spare = f"resilience.fault_tolerance={2 - smallest}"
            job = scale.job(model, *shape, spare, *scale.fast, f'cluster.transport="{kind}"')
            taken.append(train(job).step_s(scale.warm_up))
            results.figures.add(f"gpu.ways.{name}.{kind}.step", taken[-1], "s")
        rows.append(f"| {name} | {' | '.join(f'{1e3 * seconds:.1f} ms' for seconds in taken)} |")
    return [f"A step of {model}, by `cluster.transport`. Messages between stages, or sums between replicas.", "", *rows]


def most_gb(run: Watched) -> str:
    return f"{max(run.held.values(), default=0) / GB:.2f} GB"


def memory(scale: Scale, results: Results) -> list[str]:
    """What workers held in the runs before, beside the estimate."""
    rows = ["| run | worker | estimate | held | held / estimate |", "|---|---|---|---|---|"]
    for name, job, run in results.runs:
        profile = job_profile(job, msgspec.json.decode(run.folder.profile.read_bytes(), type=ModelProfile))
        plan = plans_of(run.folder.path)[-1]
        for worker in plan.workers:
            estimate, held = memory_use(plan, profile, WorkerId(worker)).total, run.held.get(worker, 0)
            results.figures.add(f"gpu.{name}.worker-{worker}.held", held / GB, "GB")
            results.figures.add(f"gpu.{name}.worker-{worker}.estimate", estimate / GB, "GB")
            rows.append(
                f"| {name} | {worker} | {estimate / GB:.3f} GB | {held / GB:.3f} GB | {held / max(estimate, 1):.2f} |"
            )
    return ["Of the runs above. Held is the most that torch's allocator reserved, as workers told.", "", *rows]


PARTS = {
    "A step": steps,
    "Bits, and a loss": bits,
    "Redundant computation": shadows,
    "Ways between workers": ways,
    "Memory beside the estimate": memory,
}


def page(scale: Scale, results: Results) -> str:
    name = torch.cuda.get_device_name() if scale.device == "cuda" else "the stand-in for a GPU, tiny models: no figures"
    lines = [
        "# Benchmarks on a GPU",
        "",
        f"Written by `python benchmarks/gpu.py`: {name}.",
        f"torch {torch.__version__}, Planaria {__version__}.",
    ]
    for title, part in PARTS.items():
        note(f"-- {title}")
        lines += ["", f"## {title}", ""]
        for line in part(scale, results):
            lines += [line] if line.startswith("|") else textwrap.wrap(line, 118) or [""]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stand-in", action="store_true", help="tiny models on the stand-in; writes into scratch")
    parser.add_argument("--page", type=Path, help="where the page goes")
    arguments = parser.parse_args()
    if not arguments.stand_in and not torch.cuda.is_available():
        print("torch sees no CUDA device here. Run it on a machine with a GPU, or give --stand-in.", file=sys.stderr)
        return 2
    SCRATCH.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    figures = Figures("GPU")
    written = page(scale_of_stand_in() if arguments.stand_in else scale_of_gpu(), Results(figures))
    path = arguments.page or (SCRATCH / PAGE.name if arguments.stand_in else PAGE)
    path.write_text(written)
    figures.finish(None)
    note(f"written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
