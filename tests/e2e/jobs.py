"""Small jobs for tests on real processes, and what a run of one left behind."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planaria.job.parse import parse_job
from planaria.job.settings import Job
from planaria.plan.costs.model_profile import (
    DeviceKind,
    LayerCost,
    LayerTimes,
    LinkCost,
    Links,
    ModelProfile,
    StepCosts,
)
from planaria.plan.plan import Group
from planaria.runtime.launch.training.result import TrainResult

MODELS = {
    "gpt2": 'type = "gpt2"\nconfig = { n_layer = 4, n_embd = 16, n_head = 2, n_positions = 16 }',
    "bert": 'type = "bert"\nconfig = { num_hidden_layers = 3, hidden_size = 16, num_attention_heads = 2, '
    "intermediate_size = 32, max_position_embeddings = 16 }",
    "llama": 'type = "llama"\nconfig = { num_hidden_layers = 4, hidden_size = 16, num_attention_heads = 2, '
    "num_key_value_heads = 1, intermediate_size = 32, max_position_embeddings = 16 }",
    "t5": 'type = "t5"\nconfig = { d_model = 16, d_kv = 8, d_ff = 32, num_layers = 2, num_heads = 2 }',
    "mixtral": 'type = "mixtral"\nconfig = { num_hidden_layers = 4, hidden_size = 16, num_attention_heads = 2, '
    "num_key_value_heads = 1, intermediate_size = 32, num_local_experts = 4 }",
    "gemma3_text": 'type = "gemma3_text"\nconfig = { num_hidden_layers = 6, hidden_size = 16, num_attention_heads = 2, '
    "num_key_value_heads = 1, intermediate_size = 32, head_dim = 8, sliding_window = 4 }",
    "modernbert": 'type = "modernbert"\nconfig = { num_hidden_layers = 4, hidden_size = 16, num_attention_heads = 2, '
    "intermediate_size = 32, local_attention = 4 }",
    "function": 'type = "layers:transformer"\nconfig = { width = 16, depth = 3, num_heads = 2, context = 16 }',
}


def make_job(text: Path, model: str = "gpt2", **changes: Any) -> Job:
    """A job of six layers on seven nodes, f = 1, n0 = 2, under templates; `changes` are "section__key" = value."""
    lines = f"""
[model]
{MODELS[model]}
[data]
source = {str(text)!r}
[train]
steps = 5
global_batch = 9
microbatch = 1
sequence_length = 16
learning_rate = 1e-2
warmup_steps = 2
seed = 3
[cluster]
nodes = 7
[resilience]
fault_tolerance = 1
policy = "templates"
min_nodes_per_pipeline = 2
"""
    overrides = [f"{key.replace('__', '.')}={json.dumps(value)}" for key, value in changes.items()]
    return parse_job(lines, overrides=overrides, origin="test")


LAYER_S = 0.002


def profile(num_layers: int = 8, layer_s: float = LAYER_S) -> ModelProfile:
    """Layers of 2 ms forwards and 4 ms backwards, messages of 1 ms; the first and the last share a group.

    A step takes as much of a processor whatever the layers take: of a run that must last, longer ones cost less.
    """
    layer = LayerCost(
        name="block",
        times=(LayerTimes(forward_s=layer_s, backward_input_s=layer_s, backward_weight_s=layer_s),),
        parameter_bytes=1_000_000,
        gradient_bytes=2_000_000,
        optimizer_bytes=2_000_000,
        activation_bytes=100_000,
        recompute_activation_bytes=10_000,
        output_bytes=1_000_000,
    )
    ends = (0, num_layers - 1)
    own = tuple(Group(layers=(n,), size_bytes=800_000 if n in ends else 1_000_000) for n in range(num_layers))
    link = LinkCost(latency_s=1e-4, bandwidth_bytes_per_s=1e9)
    return ModelProfile(
        layers=(layer,) * num_layers,
        groups=(*own, Group(layers=ends, size_bytes=200_000)),
        links=Links(within_node=link, between_nodes=link),
        device=DeviceKind(name="made up"),
        step=StepCosts(apply_s_per_byte=1e-10, sum_s_per_byte=1e-10),
    )


def make_emulated_job(profile_file: Path, **changes: Any) -> Job:
    """Seven nodes, f = 1, n0 = 2; no model and no data."""
    lines = f"""
[train]
steps = 4
global_batch = 9
microbatch = 1
sequence_length = 16
learning_rate = 1e-2
[cluster]
nodes = 7
device = "emulated"
profile = {str(profile_file)!r}
[resilience]
policy = "templates"
min_nodes_per_pipeline = 2
"""
    overrides = [f"{key.replace('__', '.')}={json.dumps(value)}" for key, value in changes.items()]
    return parse_job(lines, overrides=overrides, origin="test")


@dataclass(frozen=True)
class Outcome:
    """A run that ended: its result and the files that it left."""

    result: TrainResult

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """A line of metrics.jsonl for each step that was trained, again where it was trained twice."""
        return [json.loads(line) for line in (self.result.folder / "metrics.jsonl").read_text().splitlines()]

    @property
    def losses(self) -> dict[int, float]:
        """By step; a step that was trained twice (after a restore) counts with its last loss."""
        return {entry["step"]: entry["loss"] for entry in self.metrics if "loss" in entry}

    @property
    def evaluated(self) -> dict[int, tuple[float, float, float]]:
        """Loss, perplexity and accuracy of each evaluation, by step."""
        found = self.events("evaluated")
        return {entry["step"]: (entry["loss"], entry["perplexity"], entry["accuracy"]) for entry in found}

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.result.folder / "summary.json").read_text())

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = (self.result.folder / "events.jsonl").read_text().splitlines()
        return [entry for entry in map(json.loads, lines) if entry["event"] == kind]

    def assert_same_bits(self, reference: Outcome) -> None:
        assert self.losses == reference.losses
        assert self.evaluated == reference.evaluated
        assert self.summary["weights_sha256"] == reference.summary["weights_sha256"]
        assert self.summary["status"] == "completed"
        assert self.summary["skipped_microbatches"] == 0
        assert self.summary["duplicated_microbatches"] == 0
