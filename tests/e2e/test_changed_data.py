"""`--resume` goes on with the data that were trained on, and with others only when the user says so."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from planaria.checkpoint.manifest import newest
from planaria.data.tokens.preparation import prepare_tokens
from planaria.job.errors import UserError
from planaria.job.sections.data import DataSection
from planaria.job.settings import Job
from planaria.plan.plan import NodeId
from planaria.runtime.component_settings import node_settings
from planaria.runtime.launch.training import run as run_stage
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.worker.settings import WorkerSettings
from tests.e2e.conftest import Reference, Run
from tests.e2e.jobs import Outcome, make_job


@pytest.fixture
def corpus(text: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(text, tmp_path / "corpus.txt"))


@pytest.fixture
def job(corpus: Path) -> Job:
    return make_job(corpus, train__steps=6, cluster__nodes=4, run__checkpoint_every=3)


def stopped(run: Run, job: Job) -> Outcome:
    """A run of which the last checkpoint is of step 3."""
    outcome = run(job)
    shutil.rmtree(outcome.result.folder / "checkpoints" / "step-00000006")
    return outcome


def test_a_corpus_that_grew_is_refused_until_it_is_accepted(run: Run, job: Job, corpus: Path) -> None:
    first = stopped(run, job)
    folder = first.result.folder
    tokens = (folder / "data" / "tokens.json").read_bytes()
    with corpus.open("a") as file:
        file.write("one more line\n" * 50)
    for _ in range(2):
        with pytest.raises(UserError, match=r"grew from \d+ to \d+ tokens.*--accept-changed-data") as caught:
            run(job, resume=folder)
        assert "\n" not in str(caught.value)
        assert (folder / "data" / "tokens.json").read_bytes() == tokens
        assert sorted(file.name for file in (folder / "data").iterdir()) == ["tokens.bin", "tokens.json"]
    second = run(job, resume=folder, accept_changed_data=True)
    assert second.result.status.value == "completed"
    assert any("from step 4 on the data are others" in note["text"] for note in second.events("note"))
    _, manifest, _ = newest(folder / "checkpoints")
    before, after = manifest.history
    assert (before.since, after.since) == (0, 3)
    assert before.data is not None
    assert after.data is not None
    assert after.data.tokens == before.data.tokens + 50 * len("one more line\n")
    assert second.result.weights_sha256 != first.result.weights_sha256


@pytest.mark.proof
def test_the_same_data_at_another_place_are_the_same(run: Run, job: Job, corpus: Path) -> None:
    first = stopped(run, job)
    moved = corpus.rename(corpus.with_name("moved.txt"))
    elsewhere = msgspec.structs.replace(job, data=msgspec.structs.replace(job.data, source=str(moved)))
    second = run(elsewhere, resume=first.result.folder)
    assert second.result.weights_sha256 == first.result.weights_sha256
    _, manifest, _ = newest(first.result.folder / "checkpoints")
    assert len(manifest.history) == 1


def test_a_node_with_another_file_of_equal_length_is_refused(
    run: Run, reference: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = np.arange(3000, dtype=np.uint16) % 256
    for folder, given in (("here", ids), ("there", np.roll(ids, 1))):
        tmp_path.joinpath(folder).mkdir()
        given.tofile(tmp_path / folder / "ids.bin")
        prepare_tokens(DataSection(source=str(tmp_path / folder / "ids.bin")), tmp_path / folder)

    def settings(job: Job, folder: RunFolder, node: NodeId, **others: Any) -> list[WorkerSettings]:
        found = node_settings(job, folder, node, **others)
        there = [msgspec.structs.replace(one, data_folder=str(tmp_path / "there")) for one in found]
        return there if node == 3 else found

    monkeypatch.setattr(run_stage, "node_settings", settings)
    job = make_job(tmp_path / "here" / "ids.bin", cluster__nodes=5)
    outcome = run(job)
    outcome.assert_same_bits(reference(job))
    (note,) = [note["text"] for note in outcome.events("note") if "refused" in note["text"]]
    assert note.startswith("node 3 is refused: its data or weights are not the run's")
