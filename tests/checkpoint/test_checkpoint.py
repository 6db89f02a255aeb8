"""Checkpoints: what is written is read again to the bit, and what is damaged is found, named, and not used."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

from planaria.checkpoint.manifest import (
    MANIFEST,
    PARAMETER,
    newest,
    read_manifest,
    retain,
    step_folder,
    weights_sha256,
    write_manifest,
)
from planaria.checkpoint.state import GroupState, read_group, read_parameters, write_group
from planaria.job.errors import UserError

LAYERS = ((0,), (1,), (0, 2))
JOB = "a job's fingerprint"
KINDS = (PARAMETER, "exp_avg", "exp_avg_sq")


def state_of(group: int, step: int = 1) -> GroupState:
    generator = torch.Generator().manual_seed(100 * step + group)
    names = {f"layer.{group}.weight": (3, 4), f"layer.{group}.bias": (4,), f"layer.{group}.scale": ()}
    parts = [{name: torch.randn(shape, generator=generator) for name, shape in names.items()} for _ in range(3)]
    return dict(zip(KINDS, parts, strict=True))


def checkpoint(root: Path, step: int, *, writer: int = 0, job: str = JOB) -> Path:
    folder = step_folder(root, step)
    saved = tuple(write_group(folder, group, str(writer), state_of(group, step)) for group in range(len(LAYERS)))
    write_manifest(folder, step=step, job_fingerprint=job, exponents=(1, -2, 3), saved=saved, layers=LAYERS)
    return folder


def flip(path: Path, seed: int = 0) -> Path:
    """One bit, anywhere."""
    data = bytearray(path.read_bytes())
    at = random.Random(seed).randrange(8 * len(data))
    data[at // 8] ^= 1 << at % 8
    path.write_bytes(data)
    return path


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, 7)
    manifest = read_manifest(folder, JOB)
    assert (manifest.step, manifest.exponents) == (7, (1, -2, 3))
    assert tuple(entry.layers for entry in manifest.groups) == LAYERS
    for group in range(len(LAYERS)):
        state, found = state_of(group, 7), read_group(folder, manifest, group)
        assert {kind: part.keys() for kind, part in state.items()} == {
            kind: part.keys() for kind, part in found.items()
        }
        assert all(torch.equal(state[kind][name], found[kind][name]) for kind in state for name in state[kind])
    assert set(read_parameters(folder, manifest)) == {
        f"layer.{group}.{name}" for group in range(len(LAYERS)) for name in ("weight", "bias", "scale")
    }


def test_views_of_larger_memory_are_written_alone(tmp_path: Path) -> None:
    large = torch.arange(1000.0)
    view = {"w": large[16:20].view(2, 2)}
    saved = write_group(tmp_path / "c", 0, "0", dict.fromkeys(KINDS, view))
    assert saved.size_bytes < 1000
    write_manifest(tmp_path / "c", step=1, job_fingerprint="", exponents=(), saved=(saved,), layers=((0,),))
    assert torch.equal(read_group(tmp_path / "c", read_manifest(tmp_path / "c"), 0)[PARAMETER]["w"], view["w"])


def test_the_hash_of_the_weights_does_not_depend_on_who_wrote_them(tmp_path: Path) -> None:
    one, two = checkpoint(tmp_path / "a", 3), checkpoint(tmp_path / "b", 3, writer=5)
    digests = {weights_sha256(folder, read_manifest(folder)) for folder in (one, two)}
    assert len(digests) == 1
    other = checkpoint(tmp_path / "c", 4)
    assert weights_sha256(other, read_manifest(other)) not in digests


@pytest.mark.parametrize("seed", range(20))
def test_any_flipped_bit_of_a_groups_file_is_found(seed: int, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, 7)
    victim = flip(sorted(folder.glob("*.safetensors"))[seed % 3], seed)
    with pytest.raises(UserError, match=f"{victim.name} is corrupt"):
        read_manifest(folder)
    manifest = read_manifest(folder, verify=False)
    with pytest.raises(UserError, match=f"{victim.name} is corrupt"):
        read_parameters(folder, manifest)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"null", b"[]", b'{"version": 1}', b"\xff\xfe", b'{"version":"one"}', b"\x00" * 100]
)
def test_a_damaged_manifest_is_named(content: bytes, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, 7)
    (folder / MANIFEST).write_bytes(content)
    with pytest.raises(UserError, match=f"{MANIFEST} is damaged"):
        read_manifest(folder)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, 7)
    victim = sorted(folder.glob("*.safetensors"))[1]
    manifest = read_manifest(folder)
    victim.unlink()
    with pytest.raises(UserError, match=f"{victim.name} is missing"):
        read_manifest(folder)
    with pytest.raises(UserError, match=f"{victim.name} is missing"):
        read_group(folder, manifest, 1)
    (folder / MANIFEST).unlink()
    with pytest.raises(UserError, match="was not finished"):
        read_manifest(folder)


def test_another_format_and_another_job_are_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, 7)
    with pytest.raises(UserError, match="another job"):
        read_manifest(folder, "a different fingerprint")
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(manifest | {"version": 99}))
    with pytest.raises(UserError, match="format 99"):
        read_manifest(folder)


def test_the_newest_whole_one_is_used_and_the_others_are_complained_of(tmp_path: Path) -> None:
    for step in (2, 4, 6, 8):
        checkpoint(tmp_path, step)
    flip(next(step_folder(tmp_path, 6).glob("*.safetensors")))
    (step_folder(tmp_path, 8) / MANIFEST).unlink()
    folder, manifest, complaints = newest(tmp_path, JOB)
    assert (folder, manifest.step) == (step_folder(tmp_path, 4), 4)
    assert ["step-00000008" in complaints[0], "corrupt" in complaints[1]] == [True, True]


def test_no_usable_checkpoint_says_why(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no usable checkpoint"):
        newest(tmp_path)
    victim = flip(next(checkpoint(tmp_path, 2).glob("*.safetensors")))
    with pytest.raises(UserError, match=f"{victim.name} is corrupt.*without --resume"):
        newest(tmp_path)


def names(root: Path) -> list[int]:
    return sorted(int(folder.name.removeprefix("step-")) for folder in root.iterdir())


def test_the_oldest_checkpoints_are_removed(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        last = checkpoint(tmp_path, step)
    (step_folder(tmp_path, 3) / MANIFEST).unlink()
    retain(tmp_path, 2, last)
    assert names(tmp_path) == [2, 4], "the unfinished one does not count, and goes"
    retain(tmp_path, 1, last)
    assert names(tmp_path) == [4]


def test_a_damaged_later_one_does_not_drive_out_the_good_one(tmp_path: Path) -> None:
    """The job went on from step 4, because 6 is damaged: what it writes at 5 must stay."""
    for step in (4, 6):
        checkpoint(tmp_path, step)
    flip(next(step_folder(tmp_path, 6).glob("*.safetensors")))
    retain(tmp_path, 1, checkpoint(tmp_path, 5))
    assert names(tmp_path) == [5, 6]
    assert newest(tmp_path)[1].step == 5
    retain(tmp_path, 1, checkpoint(tmp_path, 6))
    assert names(tmp_path) == [6]
    assert newest(tmp_path)[1].step == 6


def test_two_writers_of_one_group_do_not_meet(tmp_path: Path) -> None:
    """A writer that was thought lost and one that took over: the manifest names one of them."""
    first = write_group(tmp_path / "c", 0, "1", state_of(0))
    second = write_group(tmp_path / "c", 0, "2", state_of(0))
    assert first.file != second.file
    assert first.sha256 == second.sha256
    assert not list((tmp_path / "c").glob("*.part"))
