"""Streams: in which order their samples come, how they are read on, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import datasets
import msgspec
import numpy as np
import pytest
import torch
from token_files import train_of

from planaria.data.job_data import JobData
from planaria.data.opening import open_data, prepare, reader_standing_by
from planaria.data.reading.sources import DataError, DataRaised
from planaria.data.sampler import Sampler
from planaria.data.streams.blocks import Blocks, stream_folder
from planaria.data.streams.openers import Opener
from planaria.data.streams.preparation import opener_of, prepare_stream
from planaria.data.streams.reader import Reader
from planaria.job.sections.cluster import ClusterSection
from planaria.job.sections.data import DataSection
from planaria.job.sections.eval import EvalSection
from planaria.job.sections.model import ModelSection
from planaria.job.settings import Job

HERE = __name__
STEPS = 20
BATCH = 8


def numbered(size: int = 0) -> Iterator[dict[str, Any]]:
    """Samples that tell their numbers, and what was drawn while they were made."""
    for number in range(size) if size else count():
        yield {"number": number, "drawn": torch.rand(2), "flag": number % 2 == 0}


class Saved(torch.utils.data.IterableDataset[dict[str, Any]]):
    """A stream with a position; `opened` and `given` tell what was read of it, all in all."""

    opened = 0
    given = 0

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        Saved.opened += 1
        while True:
            Saved.given += 1
            self.at += 1
            yield {"number": self.at - 1, "drawn": torch.rand(2)}

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Forgetful(Saved):
    """Comes back elsewhere than where it was."""

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"] + 1


def saved() -> Saved:
    return Saved()


def forgetful() -> Forgetful:
    return Forgetful()


def job_of(source: str, *, steps: int = STEPS, folder: str = "runs", seed: int = 0, **data: Any) -> Job:
    changes: dict[str, Any] = {"steps": steps, "global_batch": BATCH, "microbatch": BATCH, "seed": seed}
    return Job(
        model=ModelSection(type="a:b"),
        train=msgspec.structs.replace(train_of(), **changes),
        cluster=ClusterSection(nodes=1),
        data=DataSection(source=source if ":" in source else f"{HERE}:{source}", **data),
    )


def numbers(data: JobData, steps: int = STEPS, name: str = "number") -> list[int]:
    sampler = data.sampler(masked_lm=False)
    return [int(one) for step in range(1, steps + 1) for one in sampler.microbatch(step, 0)[name]]


def reader_of(job: Job, folder: Path, opener: Opener | None = None) -> tuple[Reader, Blocks]:
    blocks = prepare_stream(job, folder, lambda about: None)
    return Reader(blocks, opener or opener_of(job)), blocks


def read(reader: Reader, blocks: Blocks, *numbers: int) -> list[int]:
    for number in numbers:
        blocks.want(number)
    while reader.read_wanted():
        pass
    return blocks.batch(np.array(numbers, np.int64))["number"].tolist() if numbers else []


def read_to_the_end(job: Job, folder: Path) -> JobData:
    """Reads what the steps need here, rather than in a process."""
    reader, blocks = reader_of(job, folder)
    buffer = job.data.shuffle_buffer
    blocks.want(-(-STEPS * BATCH // buffer) * buffer)
    read(reader, blocks)
    return open_data(job, folder)


def drawn_numbers(job: Job, folder: Path) -> list[int]:
    return numbers(read_to_the_end(job, folder))


@pytest.mark.parametrize("buffer", [1, 7, 64, 10_000])
def test_every_sample_of_a_finite_stream_comes_once(buffer: int, tmp_path: Path) -> None:
    size = STEPS * BATCH
    job = job_of("numbered", config={"size": size}, shuffle_buffer=buffer)
    dealt = drawn_numbers(job, tmp_path)
    assert sorted(dealt) == list(range(size))
    assert (dealt == sorted(dealt)) == (buffer == 1)
    assert all(one // buffer == place // buffer for place, one in enumerate(dealt))


def test_the_order_is_the_seeds(tmp_path: Path) -> None:
    def dealt(name: str, **changes: Any) -> list[int]:
        return drawn_numbers(job_of("numbered", **{"shuffle_buffer": 50, **changes}), tmp_path / name)

    first = dealt("first")
    assert first == dealt("again")
    assert first != dealt("seed", seed=1)
    assert first != dealt("buffer", shuffle_buffer=51)
    assert len({*first}) == STEPS * BATCH


def test_any_process_has_the_same_samples_whatever_was_asked_before(tmp_path: Path) -> None:
    job = job_of("numbered", shuffle_buffer=30)
    with closing(prepare(job, tmp_path)) as data:
        others = [open_data(job, tmp_path).sampler(masked_lm=False) for _ in range(2)]
        late = others[0].microbatch(19, 0)
        early = others[1].microbatch(1, 0)
        sampler = data.sampler(masked_lm=False)
        for step, batch in ((1, early), (19, late)):
            again = sampler.microbatch(step, 0)
            assert all(torch.equal(batch[name], again[name]) for name in batch)
        assert {name: str(tensor.dtype) for name, tensor in early.items()} == {
            "number": "torch.int64", "drawn": "torch.float32", "flag": "torch.bool",
        }  # fmt: skip
        assert early["flag"].tolist() == [number % 2 == 0 for number in early["number"].tolist()]
        assert data.quick_hash() == open_data(job, tmp_path).quick_hash()
        drawn = torch.cat([sampler.microbatch(step, 0)["drawn"] for step in range(1, STEPS + 1)])
    assert len({*drawn.flatten().tolist()}) == drawn.numel()


@pytest.mark.parametrize("size", [0, STEPS * BATCH - 5, 2 * BATCH + 5])
def test_who_has_a_microbatch_wants_that_of_the_next_step_here(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of("numbered", shuffle_buffer=3 * BATCH, repeat=True, config={"size": size})
    sampler = read_to_the_end(job, tmp_path).sampler(masked_lm=False)
    wanted: list[list[int]] = []
    monkeypatch.setattr(Blocks, "want_missing", lambda blocks, numbers: wanted.append(numbers.tolist()))
    for step in range(1, STEPS + 1):
        sampler.microbatch(step, 0)
    assert isinstance(sampler, Sampler)
    assert wanted == [sampler.numbers(step, 0).tolist() for step in range(2, STEPS + 1)]


def test_blocks_that_are_here_are_not_wanted_again(tmp_path: Path) -> None:
    reader, blocks = reader_of(job_of("numbered"), tmp_path)
    size = blocks.about.block_samples
    read(reader, blocks, 3 * size)
    blocks.taken_wants()
    blocks.path(1).unlink()
    blocks.want_missing(np.array([4 * size + 1, 2 * size, size + 1, size], np.int64))
    assert blocks.taken_wants() == {1, 4}


def test_a_stream_that_ends_early_is_told_before_anything_starts(tmp_path: Path) -> None:
    job = job_of("numbered", config={"size": 100}, shuffle_buffer=5)
    data = read_to_the_end(job, tmp_path)
    assert len(numbers(data, 12)) == 96
    with pytest.raises(DataError) as caught:
        numbers(data, 13)
    with pytest.raises(DataError, match="ends after 100 samples"):
        data.wait(1, lambda text: None)
    assert str(caught.value) == (
        f"data.source = '{HERE}:numbered' ends after 100 samples, and the run needs 160 (20 steps of 8). "
        "Set data.repeat = true, or train.steps to at most 12."
    )


def test_a_stream_is_repeated_each_time_in_another_order(tmp_path: Path) -> None:
    dealt = drawn_numbers(job_of("numbered", config={"size": 50}, repeat=True, shuffle_buffer=20), tmp_path)
    passes = [dealt[:50], dealt[50:100], dealt[100:150]]
    assert all(sorted(one) == list(range(50)) for one in passes)
    assert passes[0] != passes[1] != passes[2]


def test_a_saved_position_is_gone_on_from(tmp_path: Path) -> None:
    job = job_of("saved")
    reader, blocks = reader_of(job, tmp_path)
    assert read(reader, blocks, 0, 990) == [0, 990]
    size = blocks.about.block_samples
    reader, blocks = reader_of(job, tmp_path)
    Saved.given = 0
    assert read(reader, blocks, 1000) == [1000]
    assert Saved.given == 2 * size, "the block before is looked at again, and no more"
    straight, other = reader_of(job, tmp_path / "other")
    read(straight, other, 1000)
    assert [path.read_bytes() for path in sorted(blocks.folder.glob("*.bin"))] == [
        path.read_bytes() for path in sorted(other.folder.glob("*.bin"))
    ]


def test_a_position_that_leads_elsewhere_is_not_trusted(tmp_path: Path) -> None:
    job = job_of("forgetful")
    reader, blocks = reader_of(job, tmp_path)
    read(reader, blocks, 500)
    reader, blocks = reader_of(job, tmp_path)
    assert read(reader, blocks, 600) == [600]


@pytest.mark.parametrize("source", ["numbered", "saved"])
def test_blocks_that_were_removed_are_read_again(source: str, tmp_path: Path) -> None:
    reader, blocks = reader_of(job_of(source), tmp_path)
    read(reader, blocks, 500)
    for block in (0, 3, 4):
        blocks.path(block).unlink()
    size = blocks.about.block_samples
    assert read(reader, blocks, 4 * size, 501) == [4 * size, 501]
    assert not blocks.path(3).exists()


def test_blocks_that_were_not_wanted_for_long_make_room(tmp_path: Path) -> None:
    job = job_of("numbered", shuffle_buffer=16)
    _, blocks = reader_of(job, tmp_path)
    reader = Reader(blocks, opener_of(job), 20)
    assert read(reader, blocks, 799) == [799]
    assert sorted(blocks.lying) == list(range(30, 50))
    assert read(reader, blocks, 31 * 16, 3 * 16) == [31 * 16, 3 * 16]
    blocks = Blocks(blocks.folder, blocks.about)
    assert read(reader, blocks, 31 * 16, 60 * 16) == [31 * 16, 60 * 16]
    assert {3, 31} < {*blocks.lying}
    assert len(blocks.lying) == 20
    few = msgspec.structs.replace(job.data, stream_disk_gb=1e-6)
    with pytest.raises(DataError, match=r"data.stream_disk_gb = 1e-06 is less than the 4.08e-06 GB of 3 shuffle buff"):
        prepare_stream(msgspec.structs.replace(job, data=few), tmp_path, lambda about: None)


def changing(at: str) -> Iterator[dict[str, Any]]:
    """Another stream from sample 40 on, once there is a file."""
    for number in count():
        yield {"number": number + (number >= 40 and Path(at).exists())}


def test_samples_that_are_others_when_they_are_read_again_are_refused(tmp_path: Path) -> None:
    job = job_of("changing", config={"at": str(tmp_path / "there")})
    reader, blocks = reader_of(job, tmp_path)
    read(reader, blocks, 100)
    (tmp_path / "there").touch()
    reader, blocks = reader_of(job, tmp_path)
    with pytest.raises(DataError, match=r"^data.source = .*: read again, samples 32 to 47 are others than before"):
        read(reader, blocks, 200)


def test_another_stream_begins_anew(tmp_path: Path) -> None:
    job = job_of("numbered", config={"size": 1000})
    reader, blocks = reader_of(job, tmp_path)
    read(reader, blocks, 100)
    asked: list[str] = []
    prepare_stream(job, tmp_path, lambda about: asked.append(about.fingerprint))
    assert asked == [blocks.about.fingerprint]
    assert blocks.path(0).exists()
    other = prepare_stream(job_of("numbered", config={"size": 900}), tmp_path, lambda about: None)
    assert not other.path(0).exists()


OWN = np.random.default_rng(0)


def unlike() -> Iterator[object]:
    yield from ({"x": torch.zeros(2 + (number == 5))} for number in range(100))


def late() -> Iterator[object]:
    yield from ({"x": torch.zeros(2 + (number == 70))} for number in range(100))


def texts() -> Iterator[object]:
    yield from ({"x": "text"} for _ in range(100))


def random_ones() -> Iterator[object]:
    yield from ({"x": OWN.random()} for _ in range(100))


def raising(at: int) -> Iterator[object]:
    for number in range(100):
        if number == at:
            raise OSError("the disk is full")
        yield {"x": number}


def nothing() -> Iterator[object]:
    return iter(())


@pytest.mark.parametrize(
    ("source", "config", "said"),
    [
        ("unlike", {}, r"sample 5 has x of float32 \(3,\), and sample 0 x of float32 \(2,\)\. Make all samples alike"),
        ("late", {}, r"sample 70 has x of float32 \(3,\), and sample 0 x of float32 \(2,\)\. Make all samples alike"),
        ("texts", {}, r"sample 0 has 'x' = 'text', which is no tensor, array or number"),
        ("random_ones", {}, r"its first samples are others when it is read again"),
        ("raising", {"at": 3}, r"sample 3 fails with OSError: the disk is full"),
        ("raising", {"at": 70}, r"sample 70 fails with OSError: the disk is full"),
        ("nothing", {}, r"gives no samples"),
    ],
)
def test_refusals_name_source_and_sample(source: str, config: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"^data.source = '{HERE}:{source}'.*{said}") as caught:
        drawn_numbers(job_of(source, config=config), tmp_path)
    assert "\n" not in str(caught.value)
    if source == "raising":
        assert isinstance(caught.value, DataRaised)
        assert 'raise OSError("the disk is full")' in caught.value.trace


@pytest.mark.usefixtures("forked_readers")
def test_what_a_reader_fails_with_is_raised_where_samples_are_wanted(tmp_path: Path) -> None:
    job = job_of("raising", config={"at": 70})
    waits: list[bool] = []
    with closing(prepare(job, tmp_path)), pytest.raises(DataRaised, match="sample 70 fails with OSError") as caught:
        data = open_data(job, tmp_path)
        data.while_waiting(lambda: waits.append(True))
        numbers(data)
    assert waits, "a worker that waits tells that it does not hang"
    assert 'raise OSError("the disk is full")' in caught.value.trace


@pytest.mark.usefixtures("forked_readers")
def test_a_reader_that_is_killed_is_started_again(tmp_path: Path) -> None:
    job = job_of("numbered", shuffle_buffer=10)
    with closing(prepare(job, tmp_path)) as data:
        sampler = data.sampler(masked_lm=False)
        found = [sampler.microbatch(1, 0)["number"].tolist()]
        assert data.reader is not None
        os.kill(data.reader.pid, signal.SIGKILL)
        found += [sampler.microbatch(step, 0)["number"].tolist() for step in range(2, STEPS + 1)]
    assert [one for batch in found for one in batch] == drawn_numbers(job, tmp_path / "other")


@pytest.mark.usefixtures("forked_readers")
def test_another_reader_goes_on_where_the_first_one_is_gone(tmp_path: Path) -> None:
    """As where a host leads a run whose leader's host has died."""
    job = job_of("numbered", shuffle_buffer=10)
    with closing(prepare(job, tmp_path)) as data:
        found = [data.sampler(masked_lm=False).microbatch(1, 0)["number"].tolist()]
        with reader_standing_by(job, tmp_path):
            data.close()
            sampler = open_data(job, tmp_path).sampler(masked_lm=False)
            found += [sampler.microbatch(step, 0)["number"].tolist() for step in range(2, STEPS + 1)]
    assert [one for batch in found for one in batch] == drawn_numbers(job, tmp_path / "other")


def test_a_share_of_a_stream_cannot_be_held_out(tmp_path: Path) -> None:
    job = msgspec.structs.replace(job_of("numbered"), eval=EvalSection(share=0.1))
    with pytest.raises(DataError, match=r"eval.share = 0.1 cannot be of a stream"):
        prepare(job, tmp_path)


def squares() -> list[dict[str, int]]:
    return [{"x": number} for number in range(20)]


def test_fields_of_streams_are_refused_for_a_dataset(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data.shuffle_buffer = 5 is for streams, and .*squares' is a dataset"):
        prepare(job_of("squares", shuffle_buffer=5), tmp_path)
    job = msgspec.structs.replace(job_of("squares"), eval=EvalSection(source=f"{HERE}:numbered"))
    with pytest.raises(DataError, match=r"eval.source = .*numbered' returns a generator, which has no __len__"):
        prepare(job, tmp_path)
    assert not stream_folder(tmp_path).exists()


TEXTS = [f"{number} bottles of beer on the wall, {number**3} of milk" for number in range(3000)]


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A dataset that the library finds by its name in the working directory."""
    (tmp_path / "some" / "corpus").mkdir(parents=True)
    rows = "".join(json.dumps({"text": text, "other": 1}) + "\n" for text in TEXTS)
    (tmp_path / "some" / "corpus" / "rows.jsonl").write_text(rows)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    return "hf://some/corpus?stream=true"


def test_a_stream_of_the_hub_is_cut_into_windows(corpus: str, tmp_path: Path) -> None:
    job = job_of(corpus, shuffle_buffer=1)
    data = read_to_the_end(job, tmp_path / "data")
    sampler = data.sampler(masked_lm=False)
    batches = [sampler.microbatch(step, 0) for step in range(1, STEPS + 1)]
    assert (data.vocab_size, data.identity.unit) == (259, "samples of a stream")
    length = job.train.sequence_length
    stream = np.concatenate([[*text.encode(), 256] for text in TEXTS])[: STEPS * BATCH * length + 1]
    assert torch.cat([batch["input_ids"].flatten() for batch in batches]).tolist() == stream[:-1].tolist()
    assert torch.cat([batch["labels"].flatten() for batch in batches]).tolist() == stream[1:].tolist()


def test_a_stream_of_the_hub_is_read_on_at_any_window(corpus: str, tmp_path: Path) -> None:
    job = job_of(corpus)
    opener = opener_of(job)
    opened = opener.open(None, 0)
    positions, windows = [], []
    for item in iter(lambda: next(opened, None), None):
        windows.append(item["window"].tolist())
        positions.append(opened.position)
    assert len(windows) > 1000
    for at in (0, 17, 999, len(windows) - 2):
        position = json.loads(json.dumps(positions[at]))
        assert next(opener.open(position, at + 1))["window"].tolist() == windows[at + 1]


@pytest.fixture(autouse=True)
def _this_module_is_found_by_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parent), *sys.path])
