"""Weights of the hub by name: as its cache has them, or a line that says what to do."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
from transformers import GPT2Config, GPT2LMHeadModel

import planaria
from planaria.job.errors import UserError
from planaria.model.weights.hub import local_weights

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the hub with one model, and no network; returns the folder of its files."""
    kept = tmp_path / "hub" / "models--some--tiny"
    folder = kept / "snapshots" / COMMIT
    config = GPT2Config(n_layer=4, n_embd=16, n_head=2, n_positions=16, vocab_size=259)
    GPT2LMHeadModel(config).save_pretrained(folder)
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return folder


def test_a_name_is_the_folder_in_the_cache(cached: Path) -> None:
    assert local_weights("hf://some/tiny") == cached
    assert local_weights("hf://some/tiny?revision=main") == cached
    assert local_weights(f"hf://some/tiny?revision={COMMIT}") == cached
    assert local_weights("some/tiny") == Path("some/tiny")


@pytest.mark.parametrize("missing", ["hf://some/other", "hf://some/tiny?revision=v2", "hf://some/tiny"])
def test_what_is_not_here_and_cannot_be_fetched_is_told_in_a_line(missing: str, cached: Path) -> None:
    (cached / "model.safetensors").unlink()  # a download that was interrupted
    with pytest.raises(
        UserError, match=f"^model.weights = '{re.escape(missing)}' cannot be had from the hub"
    ) as caught:
        local_weights(missing)
    assert "\n" not in str(caught.value)
    assert "hf download some/" in str(caught.value)


@pytest.mark.usefixtures("forked_forkservers")
def test_a_run_begins_with_them_and_goes_on_with_the_same(cached: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("So long, and thanks for all the fish.\n" * 50)
    job: dict[str, Any] = {
        "model": {"type": "auto", "weights": "hf://some/tiny"},
        "data": {"source": str(tmp_path / "text.txt")},
        "train": {"steps": 2, "global_batch": 4, "microbatch": 1, "sequence_length": 16},
        "cluster": {"nodes": 2},
        "run": {"folder": str(tmp_path / "runs")},
    }
    by_name = planaria.train(job, name="run")
    by_path = planaria.reference({**job, "model": {"type": "auto", "weights": str(cached)}}, name="alone")
    assert by_name.weights_sha256 == by_path.weights_sha256
    other = cached.parents[1] / "snapshots" / COMMIT[::-1]
    shutil.copytree(cached, other)
    (cached.parents[1] / "refs" / "main").write_text(COMMIT[::-1])
    longer = {**job, "train": {**job["train"], "steps": 3}}
    planaria.train(longer, name="run", resume=True)
    assert str(cached) in (tmp_path / "runs" / "run" / "job.json").read_text()
