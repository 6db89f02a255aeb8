"""Whole jobs in virtual time, hundreds of them: any schedule of deaths ends with the reference's bits, or says why not.

One seed is one history. A seed that fails is put into CORPUS, and stays there.
    PLANARIA_SEEDS=1000:3000 pytest tests/worker/test_cluster.py    tries others
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from tests.worker.cluster import Cluster, Outcome
from tests.worker.promises import Reference, check
from tests.worker.schedules import Schedule, schedule

from planaria.data.tokens import TokenSet, prepare_tokens
from planaria.job.settings import DataSection, Job
from planaria.launch.reference import train_reference
from planaria.observe.run_folder import RunFolder
from planaria.protocol.records import RunStatus

CORPUS = {
    82: "a survivor that happens to hold every layer kept its ledger to itself at the second loss",
    30: "survivors of a broken pipeline that happen to hold every layer, one of them with two runs",
    434: "a contribution counted twice after two losses in one step",
}
BATCH = 30


def seeds() -> range:
    first, _, end = os.environ.get("PLANARIA_SEEDS", "1000:1240").partition(":")
    return range(int(first), int(end))


BATCHES = [seeds()[at : at + BATCH] for at in range(0, len(seeds()), BATCH)]


class Laboratory:
    """Tokens, references, and a place for checkpoints."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = folder / "tokens.npy"
        np.save(self.source, np.random.default_rng(0).integers(0, 259, 4096).astype(np.uint16))
        self.data = folder / "data"
        self.tokens: TokenSet = prepare_tokens(DataSection(source=str(self.source)), self.data)
        self._references: dict[bytes, Reference] = {}
        self._runs = 0

    def reference(self, job: Job) -> Reference:
        key = msgspec.json.encode((job.model, job.train))
        if key not in self._references:
            folder = RunFolder.create(self.folder / "references", str(len(self._references)))
            result = train_reference(job, folder)
            lines = map(json.loads, folder.metrics.read_text().splitlines())
            assert result.weights_sha256 is not None
            self._references[key] = Reference({line["step"]: line["loss"] for line in lines}, result.weights_sha256)
        return self._references[key]

    def cluster(self, schedule: Schedule, **others: object) -> Cluster:
        self._runs += 1
        arguments: dict[str, object] = {
            "seed": schedule.seed,
            "kills": schedule.kills,
            "weather": schedule.weather,
            "stop_at_s": schedule.stop_at_s,
            "folder": self.folder / f"run-{self._runs}",
        } | others
        return Cluster(schedule.job, data=self.data, vocab_size=self.tokens.vocab_size, **arguments)  # type: ignore[arg-type]

    def run(self, schedule: Schedule) -> Outcome:
        """Run, check every promise, and take an unfinished run to its end on a whole cluster."""
        outcome = self.cluster(schedule).run()
        reference = self.reference(schedule.job)
        check(schedule, outcome, reference)
        saved = outcome.checkpoint
        if outcome.finish.status is not RunStatus.COMPLETED and saved is not None:
            if saved.step < schedule.job.train.steps:
                resumed = self.cluster(schedule, kills=(), stop_at_s=None, resume=saved).run()
                assert resumed.finish.status is RunStatus.COMPLETED
                assert resumed.weights == reference.weights
        return outcome


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield Laboratory(tmp_path_factory.mktemp("laboratory"))
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def no_garbage() -> Iterator[None]:
    """Clusters are cycles, and hold memory files."""
    yield
    gc.collect()


@pytest.fixture
def try_seed(laboratory: Laboratory) -> Callable[[int], Outcome]:
    return lambda seed: laboratory.run(schedule(seed, str(laboratory.source)))


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: f"{batch.start}-{batch.stop}")
def test_random_schedules(batch: range, try_seed: Callable[[int], Outcome]) -> None:
    for seed in batch:
        try:
            try_seed(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.parametrize("seed", CORPUS)
def test_corpus(seed: int, try_seed: Callable[[int], Outcome]) -> None:
    try_seed(seed)


def test_one_seed_is_one_history(laboratory: Laboratory) -> None:
    which = schedule(17, str(laboratory.source))
    first, second = (laboratory.cluster(which).run() for _ in range(2))
    assert first.history == second.history
    assert first.weights == second.weights
