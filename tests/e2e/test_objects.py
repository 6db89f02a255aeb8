"""Models and datasets given from Python: every process has them from the run folder, and so does a run that goes on.

It does so where its folder was moved, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import planaria

JOB: dict[str, Any] = {
    "train": {"steps": 4, "global_batch": 8, "microbatch": 2, "learning_rate": 1e-2},
    "cluster": {"nodes": 5},
    "resilience": {"policy": "templates", "min_nodes_per_pipeline": 2},
}


def test_a_model_and_a_dataset_are_objects(tmp_path: Path) -> None:
    class Doubled(nn.Module):
        """What only this function knows: no process could import it."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, given: torch.Tensor) -> torch.Tensor:
            return 2.0 * self.linear(given)

    def layers() -> list[nn.Module]:
        return [Doubled(), nn.Tanh(), Doubled(), nn.Linear(8, 3)]

    points = torch.randn(40, 8, generator=torch.Generator().manual_seed(1))
    dataset = [{"given": point, "labels": int(point.argmax()) % 3} for point in points]
    job = {**JOB, "run": {"folder": str(tmp_path)}}
    trained = planaria.train(
        job, model=layers, dataset=dataset, name="objects", faults=["kill:node=1,step=2,at=backward"]
    )
    assert trained.status == "completed"
    alone = planaria.reference(job, model=layers, dataset=dataset, name="alone")
    assert trained.weights_sha256 == alone.weights_sha256
    (tmp_path / "elsewhere").mkdir()
    moved = (tmp_path / "objects").rename(tmp_path / "elsewhere" / "objects")
    longer = {**job, "train": {**job["train"], "steps": 5}, "run": {"folder": str(moved.parent)}}
    on = planaria.train(longer, model=layers, dataset=dataset, name="objects", resume=True)
    again = planaria.reference(longer, model=layers, dataset=dataset, name="again", replay=moved)
    assert (on.steps, on.weights_sha256) == (5, again.weights_sha256), "the rates of the first steps were for four"


def test_objects_are_for_this_machine() -> None:
    job = {**JOB, "cluster": {"nodes": 4, "launcher": "agents", "host": "10.0.0.1"}}
    with pytest.raises(planaria.UserError, match="objects are for the processes of this machine"):
        planaria.train(job, model=list, dataset=[])


def test_what_cannot_be_pickled_leaves_nothing_behind(tmp_path: Path) -> None:
    job = {**JOB, "run": {"folder": str(tmp_path / "runs")}}
    with pytest.raises(planaria.UserError, match=r"The dataset of type generator cannot be pickled .* Give a function"):
        planaria.train(job, model=list, dataset=(point for point in range(3)), name="never")
    assert not (tmp_path / "runs" / "never").exists()
