"""Small jobs for tests on real processes, and what a run of one left behind."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planaria.job.parse import parse_job
from planaria.job.settings import Job
from planaria.runtime.launch.training.result import TrainResult

MODELS = {
    "gpt2": 'type = "gpt2"\nconfig = { n_layer = 4, n_embd = 16, n_head = 2, n_positions = 16 }',
    "bert": 'type = "bert"\nconfig = { num_hidden_layers = 3, hidden_size = 16, num_attention_heads = 2, '
    "intermediate_size = 32, max_position_embeddings = 16 }",
    "llama": 'type = "llama"\nconfig = { num_hidden_layers = 4, hidden_size = 16, num_attention_heads = 2, '
    "num_key_value_heads = 1, intermediate_size = 32, max_position_embeddings = 16 }",
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


@dataclass(frozen=True)
class Outcome:
    """A run that ended: its result and the files that it left."""

    result: TrainResult

    @property
    def losses(self) -> dict[int, float]:
        """By step; a step that was trained twice (after a restore) counts with its last loss."""
        lines = (self.result.folder / "metrics.jsonl").read_text().splitlines()
        return {entry["step"]: entry["loss"] for entry in map(json.loads, lines)}

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.result.folder / "summary.json").read_text())

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = (self.result.folder / "events.jsonl").read_text().splitlines()
        return [entry for entry in map(json.loads, lines) if entry["event"] == kind]

    def assert_same_bits(self, reference: Outcome) -> None:
        assert self.losses == reference.losses
        assert self.summary["weights_sha256"] == reference.summary["weights_sha256"]
        assert self.summary["status"] == "completed"
        assert self.summary["skipped_microbatches"] == 0
        assert self.summary["duplicated_microbatches"] == 0
