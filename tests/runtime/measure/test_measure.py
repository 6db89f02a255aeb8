"""Measured profiles: bytes against sums made by hand, times that belong together, files that are taken or refused."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from planaria.data.tokens.preparation import prepare_tokens
from planaria.job.parse import parse_job
from planaria.job.sections.cluster import Device
from planaria.job.sections.model import ModelSection
from planaria.job.sections.train import DType
from planaria.job.settings import Job
from planaria.model.load import load_model
from planaria.plan.costs.model_profile import LayerTimes, LinkCost
from planaria.plan.costs.profile_check import check_profile, decode_profile
from planaria.runtime.measure import ERROR_SUFFIX
from planaria.runtime.measure.allocations import follow_allocations
from planaria.runtime.measure.at_once import Meet, at_once
from planaria.runtime.measure.contention import measure_contention
from planaria.runtime.measure.layers import CountedMates, measure_layers, split_backward
from planaria.runtime.measure.machine import Update, measure_step
from planaria.runtime.measure.measure import measure_into
from planaria.runtime.measure.memory import own_bytes
from planaria.runtime.thresholds import LEAST_BACKWARD_SHARE, MEASURED_PARAMETERS

CPU = torch.device("cpu")
MODEL = """
import torch
from torch import nn

class Square(nn.Module):
    def forward(self, x):
        return x * x

class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 32))
        self.register_buffer("scale", torch.ones(64))
    def forward(self, x):
        return (x @ self.weight.T) * self.scale

def layers():
    return [nn.Embedding(300, 32), Square(), Wide(), Square(), nn.Linear(64, 300)]
"""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As a worker runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    tmp_path.joinpath("text.txt").write_text("to be or not to be, that is the question. " * 50)
    tmp_path.joinpath("measured_model.py").write_text(MODEL)
    job = parse_job(
        f"""
[model]
type = "measured_model:layers"
[data]
source = {str(tmp_path / "text.txt")!r}
[train]
steps = 1
global_batch = 4
microbatch = 2
sequence_length = 16
[cluster]
nodes = 2
""",
        overrides=(),
        origin="job.toml",
    )
    tmp_path.joinpath("data").mkdir()
    prepare_tokens(job.data, tmp_path / "data")
    return job


def said(output: Path) -> str:
    """What the measurement found wrong."""
    error = output.with_name(output.name + ERROR_SUFFIX)
    return error.read_text() if error.exists() else ""


def test_a_microbatch_that_no_memory_holds_is_refused_before_it_runs(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 x 16 positions: embeddings of 32 values, for which 16 kB are enough; `Wide` gives 64."""
    job = msgspec.structs.replace(job, train=msgspec.structs.replace(job.train, microbatch=4))
    monkeypatch.setattr("planaria.runtime.measure.layers.memory_bytes", lambda: 4 * 16 * (32 + 2 * 32) * 4)
    output = tmp_path / "profile.json"
    assert measure_into(job, tmp_path / "data", output, str(tmp_path)) == 2
    assert not output.exists()
    assert said(output).strip() == (
        "train.microbatch = 4: 2.Wide alone needs 41.0 kB for one microbatch, and there are 24.6 kB. "
        "Lower it, or train.sequence_length."
    )


def test_a_measured_profile_is_whole_and_its_bytes_are_right(job: Job, tmp_path: Path) -> None:
    """32 positions. What a layer keeps: the input that autograd saved, counted once; never parameters or buffers."""
    output = tmp_path / "profile.json"
    assert measure_into(job, tmp_path / "data", output, str(tmp_path)) == 0, said(output)
    profile = decode_profile(output.read_bytes())
    assert check_profile(profile) is profile
    embedding, square, wide, wide_square, head = profile.layers
    assert [layer.name for layer in profile.layers] == [
        "0.Embedding",
        "1.Square",
        "2.Wide",
        "3.Square",
        "4.Linear",
    ]
    assert [layer.parameter_bytes // 4 for layer in profile.layers] == [300 * 32, 0, 64 * 32, 0, 64 * 300 + 300]
    assert [layer.output_bytes // 4 for layer in profile.layers] == [32 * 32, 32 * 32, 32 * 64, 32 * 64, 1]
    for layer in profile.layers:
        assert (layer.gradient_bytes, layer.optimizer_bytes) == (3 * layer.parameter_bytes, 2 * layer.parameter_bytes)
    assert embedding.activation_bytes == embedding.recompute_activation_bytes == 8 * 32
    assert square.activation_bytes == square.recompute_activation_bytes == 4 * 32 * 32
    assert wide.activation_bytes == wide.recompute_activation_bytes == 4 * 32 * 32
    assert wide_square.activation_bytes == 4 * 32 * 64
    # Logarithms of the probabilities are kept for the loss.
    assert head.activation_bytes >= 4 * 32 * (64 + 300)
    # The gradients that are added, and the one that came from above.
    assert wide.workspace_bytes >= wide.parameter_bytes + wide.output_bytes
    assert embedding.workspace_bytes >= embedding.parameter_bytes
    assert (embedding.times[0].backward_input_s, square.times[0].backward_weight_s) == (0.0, 0.0)
    assert profile.device.memory_bytes == 0
    assert profile.step.vote_s > 0
    assert profile.step.sum_s_per_byte > 0
    assert profile.step.apply_s_per_byte > 0


def test_copies_of_weights_are_apart_from_what_each_microbatch_keeps(job: Job, tmp_path: Path) -> None:
    """The head's matrix has one; a weight that a layer transposes itself is cast, and kept, for each microbatch."""
    output = tmp_path / "profile.json"
    narrow = msgspec.structs.replace(job, train=msgspec.structs.replace(job.train, dtype=DType.BFLOAT16))
    assert measure_into(narrow, tmp_path / "data", output, str(tmp_path)) == 0, said(output)
    embedding, _, wide, _, head = decode_profile(output.read_bytes()).layers
    assert (embedding.copy_bytes, wide.copy_bytes, head.copy_bytes) == (0, 0, 2 * 64 * 300)
    assert wide.activation_bytes >= 2 * 64 * 32 + 2 * 32 * 32
    # Its input and what it keeps of logits, in both precisions.
    assert 4 * 32 * (64 + 300) <= head.activation_bytes <= 6 * 32 * (64 + 300) + 1000


@pytest.mark.parametrize("recomputes", [False, True])
def test_bytes_are_those_of_boundaries_that_round(job: Job, tmp_path: Path, recomputes: bool) -> None:
    """Messages halve, and so does what is kept where the forward runs again; else the widened input is kept too."""
    train = msgspec.structs.replace(job.train, boundary_dtype=DType.BFLOAT16, activation_checkpointing=recomputes)
    output = tmp_path / "profile.json"
    assert measure_into(job, tmp_path / "data", output, str(tmp_path)) == 0, said(output)
    wide = decode_profile(output.read_bytes())
    rounding = msgspec.structs.replace(job, train=train)
    assert measure_into(rounding, tmp_path / "data", output, str(tmp_path)) == 0, said(output)
    profile = decode_profile(output.read_bytes())
    assert profile.fingerprint != wide.fingerprint
    *_, head = profile.layers
    assert head.output_bytes == 4, "the loss"
    for now, before in zip(profile.layers[:-1], wide.layers, strict=False):
        assert now.output_bytes == before.output_bytes // 2
    for now, before in zip(profile.layers[1:], wide.layers[1:], strict=True):
        assert now.recompute_activation_bytes == before.recompute_activation_bytes // 2
        assert now.activation_bytes == before.activation_bytes + before.recompute_activation_bytes // 2


@pytest.mark.parametrize("cores", [1, 2])
def test_devices_that_share_a_microbatch_are_measured_with_what_they_exchange(
    cores: int, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four devices have two rounds, two one; what no shards have is computed by each. With a core for each device the
    exchanges are measured; else the link's time counts, here a second."""
    monkeypatch.setattr("planaria.runtime.measure.layers.num_cores", lambda: float(cores))
    model = msgspec.structs.replace(
        job.model, type="gpt2", virtual_shards=4,
        config={"n_layer": 1, "n_embd": 64, "n_head": 4, "n_positions": 16, "vocab_size": 300},
    )  # fmt: skip
    train = msgspec.structs.replace(job.train, parameters=())
    link = LinkCost(latency_s=1.0, bandwidth_bytes_per_s=1e30)
    built = load_model(model, train, vocab_size=300)
    ids = torch.randint(0, 300, (2, 16))
    batch = dict.fromkeys((*built.inputs, "labels"), ids)
    mates = [CountedMates(number, link) for number in (2, 4)]
    embedding, block, head = measure_layers(built, train, torch.device("cpu"), batch, mates).costs
    for layer in (embedding, block, head):
        assert [times.num_devices for times in layer.times] == [1, 2, 4]
    rounds = [(times.forward_s // 1, times.backward_s // 1) for times in block.times]
    assert rounds[0] == (0, 0)
    assert rounds[2] == (4, 4)
    if cores == 1:  # an attention and a feed-forward: what each gives, and the gradient of what each reads
        assert rounds[1] == (2, 2)
    else:
        assert rounds[1] == (0, 0)
    assert all(times.forward_s + times.backward_s < 1 for layer in (embedding, head) for times in layer.times)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("is_measured_before", [False, True])
def test_a_device_that_is_not_there_is_the_users_mistake(job: Job, tmp_path: Path, is_measured_before: bool) -> None:
    output = tmp_path / "profile.json"
    if is_measured_before:
        assert measure_into(job, tmp_path / "data", output, str(tmp_path)) == 0, said(output)
    elsewhere = msgspec.structs.replace(job, cluster=msgspec.structs.replace(job.cluster, device=Device.CUDA))
    assert measure_into(elsewhere, tmp_path / "data", output, str(tmp_path)) == 2
    assert "torch sees no CUDA device here" in said(output)


def test_the_users_traceback_is_handed_on(job: Job, tmp_path: Path) -> None:
    """One line, and below it where the user's code raised."""
    output = tmp_path / "profile.json"
    tmp_path.joinpath("raising.py").write_text("def make():\n    raise KeyError('two\\nlines')\n")
    job = msgspec.structs.replace(job, model=ModelSection(type="raising:make"))
    assert measure_into(job, tmp_path / "data", output, str(tmp_path)) == 2
    line, first, second, *_ = said(output).splitlines()
    assert line.startswith("model.type = 'raising:make' fails with KeyError")
    assert first == "Traceback (most recent call last):"
    assert second.endswith('raising.py", line 2, in make')


def test_a_profile_that_still_fits_is_not_measured_again(job: Job, tmp_path: Path) -> None:
    output = tmp_path / "profile.json"

    def measured() -> bytes:
        assert measure_into(job, tmp_path / "data", output, str(tmp_path)) == 0, said(output)
        return output.read_bytes()

    first = measured()
    assert measured() == first
    output.write_bytes(first.replace(b'"format": 1', b'"format": 0'))
    assert decode_profile(measured()).fingerprint == decode_profile(first).fingerprint


@pytest.mark.parametrize(
    ("whole_s", "input_s", "has_parameters", "expected"),
    [
        (4.0, 1.0, True, (1.0, 3.0)),
        (4.0, 5.0, True, (4.0 - 4.0 * LEAST_BACKWARD_SHARE, 4.0 * LEAST_BACKWARD_SHARE)),
        (4.0, 4.0, False, (4.0, 0.0)),
        (4.0, 3.5, False, (4.0, 0.0)),
        (4.0, 0.0, True, (0.0, 4.0)),
        (4.0, 0.0, False, (0.0, 0.0)),
    ],
)
def test_the_halves_of_a_backward_are_measured_apart(
    whole_s: float, input_s: float, has_parameters: bool, expected: tuple[float, float]
) -> None:
    times = split_backward(1.0, whole_s, input_s, 4.5, has_parameters=has_parameters)
    assert isinstance(times, LayerTimes)
    assert (times.backward_input_s, times.backward_weight_s) == pytest.approx(expected)
    assert times.forward_s == 1.0
    assert times.split_s == (0.5 if has_parameters else 0.0)


def test_allocations_are_followed_until_they_are_freed() -> None:
    given = torch.ones(1000, requires_grad=True)
    with follow_allocations(CPU) as allocations:
        first = given * 2
        second = first * first
        assert allocations.live_bytes() == 8000
        del first  # the graph still needs it
        assert allocations.live_bytes() == 8000
        (gradient,) = torch.autograd.grad(second, given, torch.ones_like(second))
        assert allocations.live_bytes() == 8000
        assert allocations.peak_bytes() >= 16000
        peak = allocations.peak_bytes()
        given.detach().add_(1.0)
        assert given[5:].view(5, 199).shape == (5, 199)
        assert (allocations.live_bytes(), allocations.peak_bytes()) == (8000, peak)
        del second, gradient
        assert allocations.live_bytes() == 0


HOLDER = """
import mmap, os, sys
size = 64 << 20
def step():
    print(flush=True)
    sys.stdin.readline()
step()
private = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
step()
for page in range(0, size, 4096):
    private[page] = 1
step()
descriptor = os.memfd_create("test")
os.ftruncate(descriptor, size)
shared = mmap.mmap(descriptor, size)
for page in range(0, size, 4096):
    shared[page] = 1
step()
file = open(sys.argv[1], "r+b")
mapped = mmap.mmap(file.fileno(), 0)
for page in range(0, size, 4096):
    mapped[page] = 1
step()
"""


def test_own_bytes_count_touched_pages_and_memory_files_but_not_files(tmp_path: Path) -> None:
    """A process takes an address range, touches it, makes a memory file of the same size, and maps a file of it."""
    size = 64 << 20
    path = tmp_path / "file"
    path.write_bytes(bytes(size))
    found = []
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        while holder.stdout.readline():
            found.append(own_bytes(holder.pid))
            holder.stdin.write(b"\n")
            holder.stdin.flush()
    assert [now - found[0] for now in found] == pytest.approx([0, 0, size, 2 * size, 2 * size], abs=1 << 20)


def test_a_given_profile_is_taken_for_the_model_that_it_is_of(job: Job, tmp_path: Path) -> None:
    """Nothing is measured: its times, however wrong, are what the run begins with."""
    measured, output = tmp_path / "measured.json", tmp_path / "profile.json"
    assert measure_into(job, tmp_path / "data", measured, str(tmp_path)) == 0, said(measured)
    profile = decode_profile(measured.read_bytes())
    prior = msgspec.structs.replace(profile, step=msgspec.structs.replace(profile.step, vote_s=12.0))
    measured.write_bytes(msgspec.json.encode(prior))
    with_prior = msgspec.structs.replace(job, cluster=msgspec.structs.replace(job.cluster, profile=str(measured)))
    assert measure_into(with_prior, tmp_path / "data", output, str(tmp_path)) == 0, said(output)
    assert decode_profile(output.read_bytes()) == prior
    other = (*prior.groups[:-1], msgspec.structs.replace(prior.groups[-1], size_bytes=4))
    last = msgspec.structs.replace(prior.layers[-1], parameter_bytes=4)
    wrong = msgspec.structs.replace(prior, groups=other, layers=(*prior.layers[:-1], last))
    measured.write_bytes(msgspec.json.encode(wrong))
    assert measure_into(with_prior, tmp_path / "data", output, str(tmp_path)) == 2
    assert "other layers, parameter groups or optimizer state than model.type" in said(output)


def test_devices_of_one_host_are_measured_at_work_at_once(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes of one device are processes of this machine; of three, six, more than cores, which take turns."""
    for module in ("dependencies", "measure"):
        monkeypatch.setattr(f"planaria.runtime.measure.{module}.num_cores", lambda: 2.5)
    output = tmp_path / "profile.json"
    assert measure_into(job, tmp_path / "data", output, str(tmp_path)) == 0, said(output)
    assert [each.num_devices for each in decode_profile(output.read_bytes()).contention] == [2]
    job = msgspec.structs.replace(job, cluster=msgspec.structs.replace(job.cluster, devices_per_node=3))
    assert measure_into(job, tmp_path / "data", output, str(tmp_path)) == 0, said(output)
    measured = decode_profile(output.read_bytes()).contention
    assert [each.num_devices for each in measured] == [8]
    assert all(each.compute >= 1 and each.update >= 1 for each in measured)


@pytest.mark.parametrize("compares", [False, True])
def test_the_end_of_a_step_is_measured_as_workers_have_it(
    job: Job, monkeypatch: pytest.MonkeyPatch, compares: bool
) -> None:
    """Of no more parameters than the model has; with the digests that are told, and that of what was written."""
    digested: list[int] = []

    def digest(vectors: Iterable[torch.Tensor], *, is_on_host: bool) -> int:
        digested.append(sum(vector.numel() for vector in vectors))
        return 0

    monkeypatch.setattr("planaria.runtime.measure.machine.digest_of", digest)
    update = Update(job.train, torch.device("cpu"), 32, compares=compares)
    assert update.size_bytes == 32 * 4
    update()
    assert digested == ([4 * 32, 3 * 32] if compares else [])
    costs = measure_step(update, LinkCost(latency_s=0.0, bandwidth_bytes_per_s=1e9))
    assert costs.apply_s_per_byte > 0
    assert costs.sum_s_per_byte > 0
    assert Update(job.train, torch.device("cpu"), 1 << 40, compares=False).size_bytes == MEASURED_PARAMETERS * 4


def test_without_memory_for_several_stages_nothing_is_run_at_once(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planaria.runtime.measure.measure.memory_bytes", lambda: 1)
    output = tmp_path / "profile.json"
    assert measure_into(job, tmp_path / "data", output, str(tmp_path)) == 0, said(output)
    assert decode_profile(output.read_bytes()).contention == ()


def test_layers_that_share_a_weight_are_at_work_together(job: Job, tmp_path: Path) -> None:
    """They are the commonest kind, and run in turn where it is measured what devices at work cost each other."""
    tmp_path.joinpath("tied_model.py").write_text(
        """
from torch import nn

def layers():
    first, second = nn.Linear(32, 32), nn.Linear(32, 32)
    second.weight = first.weight
    return [nn.Embedding(300, 32), first, second, nn.Linear(32, 300)]
"""
    )
    tied = msgspec.structs.replace(job, model=msgspec.structs.replace(job.model, type="tied_model:layers"))
    output = tmp_path / "profile.json"
    assert measure_into(tied, tmp_path / "data", output, str(tmp_path)) == 0, said(output)
    assert len(decode_profile(output.read_bytes()).contention) == 1


def test_where_a_process_dies_nothing_is_told_of_so_many(capfd: pytest.CaptureFixture[str]) -> None:
    def fails() -> None:
        raise MemoryError("no room")

    assert measure_contention(lambda: lambda: None, lambda: fails, (1.0, 1.0), 2) == ()
    assert "no room" in capfd.readouterr().err


def test_where_a_process_dies_the_one_that_waits_for_it_is_not_left(capfd: pytest.CaptureFixture[str]) -> None:
    read, written = os.pipe()

    def work(place: int, meet: Meet) -> tuple[float]:
        os.write(written, struct.pack("i", os.getpid()))
        meet(str(place))
        if place:
            raise MemoryError("no room")
        threading.Event().wait()
        return (1.0,)

    assert at_once(2, work) is None
    assert "no room" in capfd.readouterr().err
    for pid in struct.unpack("2i", os.read(read, 8)):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    os.close(read)
    os.close(written)


def test_all_that_run_at_once_learn_what_each_tells() -> None:
    assert at_once(3, lambda place, meet: (float(place), float("".join(meet(str(place)))))) == [
        (0.0, 12.0), (1.0, 12.0), (2.0, 12.0),
    ]  # fmt: skip
