"""A microbatch is a pure function of (seed, step, index); an epoch deals each window once."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from tests.e2e.incubator import Incubator
from token_files import tokens_of, train_of

from planaria.data.opening import open_data, prepare
from planaria.data.reading.sources import DataError
from planaria.data.sampler import Sampler
from planaria.data.samples.windows import Windows
from planaria.data.tokens.token_set import TokenSet
from planaria.data.tokens.tokenizer import MASK_ID
from planaria.job.sections.cluster import ClusterSection
from planaria.job.sections.data import DataSection
from planaria.job.sections.eval import EvalSection
from planaria.job.sections.model import ModelSection
from planaria.job.sections.train import TrainSection
from planaria.job.settings import Job

TEXT = bytes(random.Random(0).randrange(32, 127) for _ in range(1000))


@pytest.fixture
def tokens(tmp_path: Path) -> TokenSet:
    return tokens_of(tmp_path, TEXT)


def sampler_of(
    tokens: TokenSet,
    train: TrainSection,
    mask_probability: float,
    masked_lm: bool,
    *,
    eval_share: float = 0.0,
    validation: TokenSet | None = None,
) -> Sampler:
    def windows(tokens: TokenSet, field: str) -> Windows:
        return Windows(tokens, train, mask_probability, masked_lm, field)

    other = None if validation is None else windows(validation, "eval.source")
    return Sampler(windows(tokens, "data.source"), train, eval_share=eval_share, validation=other)


def test_labels_are_the_next_tokens(tokens: TokenSet) -> None:
    sampler = sampler_of(tokens, train_of(), 0.15, False)
    batch = sampler.microbatch(0, 1)
    assert batch["input_ids"].shape == batch["labels"].shape == (2, 16)
    assert batch["input_ids"].dtype == batch["labels"].dtype == torch.int64
    for row, window in enumerate(sampler.numbers(0, 1)):
        ids = tokens.ids[window * 16 : window * 16 + 17].astype(np.int64)
        assert batch["input_ids"][row].tolist() == ids[:-1].tolist()
        assert batch["labels"][row].tolist() == ids[1:].tolist()


@pytest.mark.parametrize("masked_lm", [False, True])
def test_microbatches_do_not_depend_on_what_was_asked_before(tokens: TokenSet, masked_lm: bool) -> None:
    asked = [(step, index) for step in range(30) for index in range(4)]
    one = sampler_of(tokens, train_of(), 0.15, masked_lm)
    other = sampler_of(tokens, train_of(), 0.15, masked_lm)
    forwards = {key: one.microbatch(*key) for key in asked}
    random.Random(1).shuffle(asked)
    for key in asked:
        batch = other.microbatch(*key)
        assert all(torch.equal(batch[name], forwards[key][name]) for name in batch)


def test_another_process_samples_the_same(tokens: TokenSet, tmp_path: Path, incubator: Incubator) -> None:
    script = tmp_path / "sample.py"
    script.write_text(f"""
import hashlib
from pathlib import Path
from planaria.data.sampler import Sampler
from planaria.data.samples.windows import Windows
from planaria.data.tokens.token_set import open_tokens
from planaria.job.sections.train import TrainSection
train = TrainSection(steps=4, global_batch=8, microbatch=2, sequence_length=16, seed=3)
windows = Windows(open_tokens(Path({str(tmp_path / "tokens")!r})), train, 0.15, True)
batch = Sampler(windows, train).microbatch(9, 2)
print(batch["input_ids"].tolist(), batch["labels"].tolist())
""")
    said, error = incubator.start(tmp_path, script=script).communicate()
    batch = sampler_of(tokens, train_of(seed=3), 0.15, True).microbatch(9, 2)
    assert said.strip() == f"{batch['input_ids'].tolist()} {batch['labels'].tolist()}", error


@pytest.mark.parametrize("microbatch", [1, 2, 4])
def test_no_window_comes_twice_in_an_epoch(tokens: TokenSet, microbatch: int) -> None:
    sampler = sampler_of(tokens, train_of(microbatch=microbatch), 0.15, False)
    steps = 3 * sampler.num_samples // 8 + 1
    dealt = np.concatenate([sampler.numbers(step, index) for step in range(steps) for index in range(8 // microbatch)])
    assert sampler.num_samples == 1000 // 16
    epochs = dealt[: 3 * sampler.num_samples].reshape(3, sampler.num_samples)
    for epoch in epochs:
        assert sorted(epoch.tolist()) == list(range(sampler.num_samples))
    assert epochs[0].tolist() != epochs[1].tolist()


def test_the_microbatch_size_does_not_change_the_steps_samples(tokens: TokenSet) -> None:
    def step(microbatch: int) -> list[int]:
        sampler = sampler_of(tokens, train_of(microbatch=microbatch), 0.15, False)
        return [int(one) for index in range(8 // microbatch) for one in sampler.numbers(5, index)]

    assert step(1) == step(2) == step(8)


def test_the_seed_changes_the_order(tokens: TokenSet) -> None:
    orders = [sampler_of(tokens, train_of(seed=seed), 0.15, False).numbers(0, 0).tolist() for seed in range(4)]
    assert len({tuple(order) for order in orders}) > 1


def test_a_step_may_be_longer_than_an_epoch(tmp_path: Path) -> None:
    sampler = sampler_of(tokens_of(tmp_path, TEXT[:40]), train_of(), 0.15, False)
    assert sampler.num_samples == 2
    dealt = [int(one) for index in range(4) for one in sampler.numbers(0, index)]
    assert [sorted(dealt[first : first + 2]) for first in range(0, 8, 2)] == [[0, 1]] * 4


def test_masking_hides_a_share_of_tokens(tokens: TokenSet) -> None:
    train = train_of(global_batch=60, microbatch=60)
    batch = sampler_of(tokens, train, 0.15, True).microbatch(0, 0)
    plain = sampler_of(tokens, train, 0.15, False).microbatch(0, 0)["input_ids"]
    inputs, labels = batch["input_ids"], batch["labels"]
    asked = labels != -100
    assert 0.10 < asked.float().mean() < 0.20
    assert torch.equal(inputs[~asked], plain[~asked])
    assert torch.equal(labels[asked], plain[asked])
    hidden = (inputs[asked] == MASK_ID).float().mean()
    assert 0.70 < hidden < 0.90
    assert ((inputs[asked] != MASK_ID) & (inputs[asked] != plain[asked])).any()
    assert (inputs[asked] == plain[asked]).any()


def test_at_least_one_token_is_masked(tokens: TokenSet) -> None:
    sampler = sampler_of(tokens, train_of(), 1e-9, True)
    for step in range(20):
        assert int((sampler.microbatch(step, 0)["labels"] != -100).sum()) == 1


def test_refusals_name_the_value_and_the_remedy(tmp_path: Path, tokens: TokenSet) -> None:
    with pytest.raises(DataError, match=r"1001 tokens, fewer than the 2001 .*\.sequence_length to 1000"):
        sampler_of(tokens, train_of(sequence_length=2000), 0.15, False)
    with pytest.raises(DataError, match="mask_probability = 0"):
        sampler_of(tokens, train_of(), 0.0, True)
    maskless = TokenSet(msgspec.structs.replace(tokens.about, mask_token_id=None), tokens.ids)
    with pytest.raises(DataError, match="no mask token"):
        sampler_of(maskless, train_of(), 0.15, True)


@pytest.mark.parametrize("microbatch", [1, 2, 4])
def test_what_is_held_out_is_never_trained_on(tokens: TokenSet, microbatch: int) -> None:
    sampler = sampler_of(tokens, train_of(microbatch=microbatch), 0.15, False, eval_share=0.1)
    held_out = np.concatenate([sampler.held_out(index) for index in range(sampler.num_eval_microbatches)])
    assert 0.1 * 62 <= len(held_out) < 0.1 * 62 + microbatch
    assert len(set(held_out.tolist())) == len(held_out)
    assert sampler.num_samples == 62 - len(held_out)
    steps = 2 * sampler.num_samples // 8 + 1
    dealt = np.concatenate([sampler.numbers(step, index) for step in range(steps) for index in range(8 // microbatch)])
    for epoch in dealt[: 2 * sampler.num_samples].reshape(2, -1):
        assert sorted([*epoch.tolist(), *held_out.tolist()]) == list(range(62))


@pytest.mark.parametrize("masked_lm", [False, True])
def test_what_is_held_out_is_the_same_in_every_run(tokens: TokenSet, masked_lm: bool) -> None:
    one = sampler_of(tokens, train_of(seed=1), 0.15, masked_lm, eval_share=0.1)
    other = sampler_of(tokens, train_of(seed=2), 0.15, masked_lm, eval_share=0.1)
    for index in range(one.num_eval_microbatches):
        batch, again = one.eval_microbatch(index), other.eval_microbatch(index)
        assert batch["input_ids"].shape == (2, 16)
        assert all(torch.equal(batch[name], again[name]) for name in batch)
    more = sampler_of(tokens, train_of(), 0.15, masked_lm, eval_share=0.3)
    assert {*one.held_out(0)} <= {number for n in range(more.num_eval_microbatches) for number in more.held_out(n)}


def test_a_source_of_its_own_is_evaluated_on_in_order(tmp_path: Path, tokens: TokenSet) -> None:
    (tmp_path / "other").mkdir()
    validation = tokens_of(tmp_path / "other", TEXT[::-1][:90])
    sampler = sampler_of(tokens, train_of(), 0.15, False, validation=validation)
    plain = sampler_of(tokens, train_of(), 0.15, False)
    assert (sampler.num_eval_microbatches, plain.num_eval_microbatches) == (2, 0)
    seen = [row for index in range(2) for row in sampler.eval_microbatch(index)["input_ids"].tolist()]
    assert b"".join(map(bytes, seen)) == TEXT[::-1][:64]
    assert sampler.numbers(3, 1).tolist() == plain.numbers(3, 1).tolist()


def test_a_job_prepares_what_it_is_evaluated_on(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_bytes(TEXT)
    (tmp_path / "eval.txt").write_bytes(TEXT[:200])
    job = Job(
        model=ModelSection(type="gpt2"), train=train_of(), cluster=ClusterSection(nodes=1),
        data=DataSection(source=str(tmp_path / "train.txt")), eval=EvalSection(source=str(tmp_path / "eval.txt")),
    )  # fmt: skip
    prepare(job, tmp_path / "data")
    data = open_data(job, tmp_path / "data")
    assert data.sampler(masked_lm=False).num_eval_microbatches == 12 // 2
    weights = tmp_path / "weights"
    weights.mkdir()
    started = msgspec.structs.replace(job, model=ModelSection(type="gpt2", weights=str(weights)))
    hashes = set()
    for content in (b"", b"a" * 1_000_000, b"a" * 999_999 + b"b"):
        (weights / "model.safetensors").write_bytes(content)
        hashes.add(open_data(started, tmp_path / "data").quick_hash())
    assert len(hashes) == 3, "nodes with other weights are told apart"
    without = prepare(msgspec.structs.replace(job, eval=EvalSection()), tmp_path / "data")
    assert data.quick_hash().startswith(without.quick_hash())
    assert len(data.quick_hash()) > len(without.quick_hash())
    with pytest.raises(DataError, match=r"eval.source = '/no/file': .*does not exist"):
        prepare(msgspec.structs.replace(job, eval=EvalSection(source="/no/file")), tmp_path / "data")


def test_refusals_of_what_to_evaluate_on(tmp_path: Path, tokens: TokenSet) -> None:
    (tmp_path / "other").mkdir()
    short = tokens_of(tmp_path / "other", TEXT[:20])
    with pytest.raises(DataError, match=r"eval.share = 0.999 holds out all of the 62 windows"):
        sampler_of(tokens, train_of(), 0.15, False, eval_share=0.999)
    with pytest.raises(DataError, match=r"eval.source = .* has 21 tokens, fewer than the 31"):
        sampler_of(tokens, train_of(sequence_length=30), 0.15, False, validation=short)
    with pytest.raises(DataError, match=r"eval.source = .* fewer windows of 16 tokens than one microbatch of 2"):
        sampler_of(tokens, train_of(), 0.15, False, validation=short)
