"""Several sources by weight: each sample's source is a function of its number, and each source has its own epochs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from token_files import train_of

from planaria.data.mixture import dealt_by_weight
from planaria.data.opening import open_data, prepare
from planaria.data.reading.sources import DataError
from planaria.job.errors import UserError
from planaria.job.history import DataIdentity
from planaria.job.parse import job_from_table
from planaria.job.sections.cluster import ClusterSection
from planaria.job.sections.data import DataSection, SourceSection
from planaria.job.sections.eval import EvalSection
from planaria.job.sections.model import ModelSection
from planaria.job.sections.run import RunSection
from planaria.job.settings import Job


@pytest.mark.parametrize("parts", [(1, 1), (700, 200, 100), (1, 999_999), (5, 1, 1, 1, 1000)])
def test_sources_come_by_weight_all_along(parts: tuple[int, ...]) -> None:
    numbers = np.arange(3000)
    sources, places = dealt_by_weight(numbers, parts)
    counts = np.cumsum(sources[:, None] == np.arange(len(parts)), axis=0)
    expected = (numbers[:, None] + 1) * np.array(parts) / sum(parts)
    assert (np.abs(counts - expected) < len(parts)).all()
    for source in range(len(parts)):
        of_source = places[sources == source]
        assert of_source.tolist() == list(range(len(of_source)))


def test_a_number_alone_says_its_source() -> None:
    parts = (3, 5, 1)
    sources, places = dealt_by_weight(np.arange(10**9, 10**9 + 500), parts)
    for at in random.Random(0).sample(range(500), 50):
        (source,), (place,) = dealt_by_weight(np.array([10**9 + at]), parts)
        assert (source, place) == (sources[at], places[at])


def job_of(folder: Path, **fields: Any) -> Job:
    for name, letter, size in (("a.txt", "a", 160), ("b.txt", "b", 320)):
        (folder / name).write_text(letter * size)
    sources = (SourceSection(source=str(folder / "a.txt"), weight=3), SourceSection(source=str(folder / "b.txt")))
    return Job(
        model=ModelSection(type="gpt2"), train=train_of(), cluster=ClusterSection(nodes=1),
        data=DataSection(sources=sources), run=RunSection(folder=str(folder / "runs")), **fields,
    )  # fmt: skip


def letters(batch: dict[str, torch.Tensor]) -> str:
    return "".join(chr(one) for one in batch["input_ids"][:, 1].tolist())


def test_rows_come_from_sources_by_weight(tmp_path: Path) -> None:
    data = prepare(job_of(tmp_path), tmp_path / "data")
    sampler = data.sampler(masked_lm=False)
    rows = "".join(letters(sampler.microbatch(step, index)) for step in range(8) for index in range(4))
    assert rows.count("a") == 48
    assert all(rows[first : first + 8].count("a") in (5, 6, 7) for first in range(0, 64, 8))
    again = open_data(job_of(tmp_path), tmp_path / "data").sampler(masked_lm=False)
    assert torch.equal(again.microbatch(5, 2)["labels"], sampler.microbatch(5, 2)["labels"])
    assert data.identity.tokens == 482
    assert data.identity.weights == (3.0, 1.0)


def test_each_source_is_held_out_by_its_share(tmp_path: Path) -> None:
    data = prepare(job_of(tmp_path, eval=EvalSection(share=0.3)), tmp_path / "data")
    sampler = data.sampler(masked_lm=False)
    told = [letters(sampler.eval_microbatch(index)) for index in range(sampler.num_eval_microbatches)]
    assert told == ["aa", "bb"] or sorted(told) == ["aa", "aa", "bb"]


def test_what_is_wrong_with_a_source_names_it(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    (tmp_path / "b.txt").unlink()
    with pytest.raises(DataError, match=r"data\.sources\[1\]\.source = .*b\.txt': The file or folder does not exist"):
        prepare(job, tmp_path / "data")
    for given, part in (
        ({"source": "a:b"}, "is a dataset"),
        ({"source": "a.txt", "weight": 0}, r"data.sources\[1\].weight = 0"),
        ({"source": "a.txt", "prompt": "p"}, "goes with data.completion"),
    ):
        table = msgspec.to_builtins(job)
        table["data"]["sources"] = [table["data"]["sources"][0], given]
        with pytest.raises(UserError, match=part):
            job_from_table(table)


def test_no_source_is_replaced_where_one_is_refused(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    folder = tmp_path / "run"
    prepare(job, folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def refuse(identity: DataIdentity) -> None:
        raise DataError("other data")

    for source in job.data.sources:
        Path(source.source).write_text(Path(source.source).read_text() + "more " * 50)
    with pytest.raises(DataError, match="other data"):
        prepare(job, folder, refuse)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert len(prepare(job, folder).trained) == len(job.data.sources)
