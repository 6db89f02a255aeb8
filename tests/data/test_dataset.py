"""Datasets of the user's: how items become batches, what is refused, and what tells two datasets apart."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from token_files import train_of

from planaria.data.opening import open_data, prepare
from planaria.data.reading.sources import DataError, DataRaised
from planaria.data.sampler import Sampler
from planaria.data.samples.dataset import Items, load_items
from planaria.job.errors import UserError
from planaria.job.sections.cluster import ClusterSection
from planaria.job.sections.data import DataSection
from planaria.job.sections.eval import EvalSection
from planaria.job.sections.model import ModelSection
from planaria.job.settings import Job

HERE = __name__


class Squares:
    def __init__(self, size: int = 40, **others: Any) -> None:
        self.size = size
        self.others = others

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"number": number, "square": np.full((2, 3), float(number**2)), **self.others}


class Noisy(Squares):
    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"torch": torch.rand(2), "numpy": np.random.rand(2), "python": random.random(), "number": number}


class OfItems:
    """A dataset of eight items, all but one of them alike."""

    def __init__(self, odd: Callable[[], object], at: int = 5, usual: object = 1.0) -> None:
        self.odd, self.at, self.usual = odd, at, usual

    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> object:
        return self.odd() if number == self.at else {"x": self.usual}


class Growing(Squares):
    """Draws from a generator of its own."""

    own = np.random.default_rng(0)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"x": self.own.random()}


def squares(size: int = 40) -> Squares:
    return Squares(size)


def other_squares(size: int = 40) -> Squares:
    return Squares(size, more=1)


def noise() -> Noisy:
    return Noisy()


def raises() -> object:
    raise KeyError("no such folder")


def number() -> int:
    return 3


def test_items_become_tensors_of_few_types() -> None:
    values: dict[str, Any] = {
        "float": 0.5, "int": 7, "bool": True, "double": np.float64(0.5), "short": np.arange(3, dtype=np.int16),
        "bytes": np.arange(3, dtype=np.uint8)[::-1], "half": torch.ones(2, dtype=torch.float16),
    }  # fmt: skip
    items = Items(Squares(**values), "data.source = 'a:b'")
    batch = items.batch(np.array([3, 5]), np.random.default_rng(0))
    assert {name: (str(tensor.dtype)[6:], *tensor.shape) for name, tensor in batch.items()} == {
        "number": ("int64", 2), "square": ("float32", 2, 2, 3), "float": ("float32", 2), "int": ("int64", 2),
        "bool": ("bool", 2), "double": ("float32", 2), "short": ("int64", 2, 3), "bytes": ("uint8", 2, 3),
        "half": ("float16", 2, 2),
    }  # fmt: skip
    assert batch["number"].tolist() == [3, 5]
    assert batch["square"][:, 0, 0].tolist() == [9.0, 25.0]
    assert batch["bytes"][0].tolist() == [2, 1, 0]


def test_a_pair_is_input_and_labels() -> None:
    items = Items([(torch.zeros(2), 1), (torch.ones(2), 0)], "data.source = 'a:b'")
    batch = items.batch(np.array([1, 0]), np.random.default_rng(0))
    assert batch["input"].tolist() == [[1.0, 1.0], [0.0, 0.0]]
    assert batch["labels"].tolist() == [0, 1]


def test_chance_is_a_function_of_the_microbatch_and_leaves_no_trace() -> None:
    train = train_of(microbatch=4)
    one, other = (Sampler(Items(Noisy(), "a"), train) for _ in range(2))
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    batch = one.microbatch(3, 1)
    drawn = (torch.rand(1).item(), np.random.rand(), random.random())
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    assert drawn == (torch.rand(1).item(), np.random.rand(), random.random())
    other.microbatch(0, 0)
    again = other.microbatch(3, 1)
    assert all(torch.equal(batch[name], again[name]) for name in batch)
    assert all(len(set(batch[name].flatten().tolist())) == batch[name].numel() for name in batch)
    assert not torch.equal(batch["torch"], one.microbatch(4, 1)["torch"])


def test_every_item_comes_once_an_epoch() -> None:
    sampler = Sampler(Items(Squares(), "a"), train_of(), eval_share=0.1)
    assert (sampler.num_samples, sampler.num_eval_microbatches) == (36, 2)
    dealt = [int(one) for step in range(9) for index in range(4) for one in sampler.microbatch(step, index)["number"]]
    held_out = [int(one) for index in range(2) for one in sampler.eval_microbatch(index)["number"]]
    assert sorted([*dealt[:36], *held_out]) == list(range(40))
    assert sorted(dealt[:36]) == sorted(dealt[36:])


def test_the_fingerprint_tells_datasets_apart() -> None:
    def fingerprint(dataset: Any) -> str:
        return Items(dataset, "a").fingerprint

    assert fingerprint(Squares()) == fingerprint(Squares())
    different = [Squares(), Squares(41), Squares(more=1), Squares(more=1.0), Squares(more=2)]
    assert len({fingerprint(dataset) for dataset in different}) == len(different)
    assert fingerprint(Noisy()) == fingerprint(Noisy())


NAN = {"x": float("nan")}
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (list, r"has no items"),
    (lambda: OfItems(lambda: "text"), r"item 5 is a str, not a dict of tensors by name, nor a pair"),
    (lambda: OfItems(lambda: (1, 2, 3)), r"item 5 is a tuple, not a dict"),
    (lambda: OfItems(lambda: {"x": "text"}, at=0), r"item 0 has 'x' = 'text', which is no tensor, array or number"),
    (lambda: OfItems(lambda: {"x": np.array(["a"])}, at=0), r"item 0 has 'x' = array\(\['a'\].*no tensor"),
    (lambda: OfItems(lambda: {"y": 1.0}), r"item 5 has y of float32, and item 0 x of float32"),
    (lambda: OfItems(lambda: {"x": 1}), r"item 5 has x of int64, and item 0 x of float32"),
    (lambda: OfItems(lambda: {"x": np.ones(2)}), r"item 5 has x of float32 \(2,\), and item 0 x of float32\. Make all"),
    (lambda: OfItems(lambda: NAN), r"item 5 has values in 'x' that are not finite"),
    (lambda: OfItems(lambda: NAN, at=0), r"item 0 has values in 'x' that are not finite"),
    (lambda: OfItems(raises), r"item 5 fails with KeyError: 'no such folder'"),
    (lambda: Growing(), r"item 0 is another when it is read again.*seeded for each item"),
]


@pytest.mark.parametrize(("dataset", "said"), REFUSED)
def test_refusals_name_the_item(dataset: Callable[[], Any], said: str) -> None:
    with pytest.raises(DataError, match=f"^a.*{said}") as caught:
        Items(dataset(), "a")
    assert "\n" not in str(caught.value)


def test_refusals_of_what_the_function_returns() -> None:
    with pytest.raises(DataError, match=r"data.source = .*:number' returns a int, which has no __len__"):
        load_items(f"{HERE}:number", {}, "data.source")
    with pytest.raises(
        DataRaised, match=r"eval.source = .* fails with KeyError: 'no such folder'.*\[eval.config\]"
    ) as raised:
        load_items(f"{HERE}:raises", {}, "eval.source")
    assert 'raise KeyError("no such folder")' in raised.value.trace
    with pytest.raises(DataRaised, match=r"unexpected keyword argument 'sise'.*\[data.config\].*\{'sise': 1\}"):
        load_items(f"{HERE}:squares", {"sise": 1}, "data.source")
    with pytest.raises(UserError, match=r"data.source = .* has no function 'cubes'"):
        load_items(f"{HERE}:cubes", {}, "data.source")


def job_of(dataset: str, **evaluated_on: Any) -> Job:
    return Job(
        model=ModelSection(type="a:b"),
        train=msgspec.structs.replace(train_of(), sequence_length=0),
        cluster=ClusterSection(nodes=1),
        data=DataSection(source=f"{HERE}:{dataset}", config={"size": 20}),
        eval=EvalSection(**evaluated_on),
    )


def test_a_job_opens_its_datasets(tmp_path: Path) -> None:
    job = job_of("squares", source=f"{HERE}:squares", config={"size": 7})
    data = prepare(job, tmp_path / "data")
    again = open_data(job, tmp_path / "data")
    assert (data.vocab_size, data.identity.tokens, data.identity.unit) == (None, 20, "samples")
    assert data.identity == again.identity
    assert data.quick_hash() == again.quick_hash()
    assert data.example is not None
    assert data.example["number"].tolist() == [0, 1]
    sampler = data.sampler(masked_lm=False)
    assert (sampler.num_samples, sampler.num_eval_microbatches) == (20, 3)
    assert sampler.eval_microbatch(2)["number"].tolist() == [4, 5]
    other = msgspec.structs.replace(job, data=msgspec.structs.replace(job.data, config={"size": 21}))
    assert data.identity.changes(open_data(other, tmp_path).identity) == ["the data grew from 20 to 21 samples"]
    assert data.quick_hash() != open_data(other, tmp_path).quick_hash()
    with pytest.raises(DataError, match=r"eval.source = .* has items of .* more of int64, and data.source = .*alike"):
        open_data(job_of("squares", source=f"{HERE}:other_squares"), tmp_path)
