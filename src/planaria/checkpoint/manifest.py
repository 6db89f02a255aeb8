"""Keeps checkpoints on disk: one file a parameter group, and a manifest with checksums that is renamed into place last.

A checkpoint knows nothing of plans: any plan can write one, and any other can read it. No torch here.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import msgspec

from planaria.checkpoint.numerics import NUMERICS_VERSION
from planaria.job.errors import UserError
from planaria.job.history import History
from planaria.protocol.messages.worker import SavedGroup

MANIFEST = "manifest.json"
FORMAT_VERSION = 2
"""Version of the format. 1: without numerics_version and history; the job's fingerprint was made otherwise."""


class GroupEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The file of a group, and the layers that the group belongs to."""

    file: str
    size_bytes: int
    sha256: str
    layers: tuple[int, ...]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a checkpoint: the state after `step`.

    Attributes:
        version: the format's version.
        step: the last step applied.
        job_fingerprint: of the sections that determine the numbers; another job's checkpoint is refused.
        exponents: grid exponents for the next step.
        groups: by group number.
        numerics_version: of the numbers, see `checkpoint.numerics`.
        history: what determined the samples and rates of the steps up to `step`.
    """

    version: int
    step: int
    job_fingerprint: str
    exponents: tuple[int, ...]
    groups: tuple[GroupEntry, ...]
    numerics_version: int = 1
    history: History = ()


class _Version(msgspec.Struct):
    version: int


def step_folder(root: Path, step: int) -> Path:
    return root / f"step-{step:08d}"


def write_manifest(
    folder: Path,
    *,
    step: int,
    job_fingerprint: str,
    exponents: tuple[int, ...],
    saved: tuple[SavedGroup, ...],
    layers: tuple[tuple[int, ...], ...],
    history: History = (),
) -> None:
    """Makes a checkpoint whole. Its files must be on disk."""
    manifest = Manifest(
        version=FORMAT_VERSION,
        step=step,
        job_fingerprint=job_fingerprint,
        exponents=exponents,
        groups=tuple(
            GroupEntry(file=part.file, size_bytes=part.size_bytes, sha256=part.sha256, layers=layers[part.group])
            for part in saved
        ),
        numerics_version=NUMERICS_VERSION,
        history=history,
    )
    partial = folder / (MANIFEST + ".part")
    with partial.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        file.flush()
        os.fsync(file.fileno())
    partial.rename(folder / MANIFEST)


def read_manifest(folder: Path, job_fingerprint: str | None = None, *, verify: bool = True) -> Manifest:
    """Reads a checkpoint's manifest, and with `verify` every file's checksum.

    Raises:
        UserError: it is not whole, damaged, of another job, or of another version; the message names the file.
    """
    path = folder / MANIFEST
    try:
        content = path.read_bytes()
        version = msgspec.json.decode(content, type=_Version).version
        if not 1 <= version <= FORMAT_VERSION:
            raise UserError(
                f"checkpoint {path} has format {version}; this Planaria reads formats up to {FORMAT_VERSION}. "
                "Use the version that wrote it, or a newer one."
            )
        manifest = msgspec.json.decode(content, type=Manifest)
    except FileNotFoundError:
        raise UserError(f"checkpoint {folder} has no {MANIFEST}: it was not finished") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"checkpoint {path} is damaged: {error}") from None
    if job_fingerprint is not None and version > 1 and manifest.job_fingerprint != job_fingerprint:
        raise UserError(
            f"checkpoint {folder} belongs to another job: [model] or [train] differ. "
            "Resume with the job file that it was made with, or start a new run with --name."
        )
    for entry in manifest.groups if verify else ():
        _verify(folder / entry.file, entry)
    return manifest


def _verify(path: Path, entry: GroupEntry) -> None:
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
    except FileNotFoundError:
        raise _missing(path) from None
    if digest.hexdigest() != entry.sha256:
        raise _corrupt(path)


def read_verified(path: Path, entry: GroupEntry) -> bytes:
    """Reads a group's file, if it is what was written.

    Raises:
        UserError: it is missing or corrupt; the message names it.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise _missing(path) from None
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise _corrupt(path)
    return data


def _missing(path: Path) -> UserError:
    return UserError(f"checkpoint file {path} is missing")


def _corrupt(path: Path) -> UserError:
    return UserError(f"checkpoint file {path} is corrupt: its SHA-256 differs from the manifest's")


def newest(root: Path, job_fingerprint: str | None = None) -> tuple[Path, Manifest, list[str]]:
    """Finds the newest checkpoint that is whole, and one line for each newer one that is not.

    Raises:
        UserError: there is none.
    """
    complaints: list[str] = []
    for folder in sorted(root.glob("step-*"), reverse=True):
        try:
            return folder, read_manifest(folder, job_fingerprint), complaints
        except UserError as error:
            complaints.append(str(error))
    reasons = "; ".join(complaints)
    raise UserError(
        f"no usable checkpoint in {root}{f': {reasons}' if reasons else ''}. "
        f"Train without --resume, as another run by --name NAME, or once {root.parent} is removed."
    )


def whole_steps(root: Path, last: int) -> tuple[int, ...]:
    """Returns the steps up to `last` of the checkpoints that are whole, by what their folders say."""
    steps = sorted(int(path.parent.name.removeprefix("step-")) for path in root.glob(f"step-*/{MANIFEST}"))
    return tuple(step for step in steps if step <= last)


def retain(root: Path, keep: int, last: Path, best: Path | None = None) -> None:
    """Removes the oldest whole checkpoints beyond `keep`, and what is left of unfinished older ones.

    Args:
        root: folder of checkpoints.
        keep: how many stay.
        last: the newest good one. A later one is damaged, or the job would not have gone on from before it: it does
            not count, and stays for whoever wants to look at it until the job comes by again.
        best: stays whatever is newer.
    """
    folders = [folder for folder in sorted(root.glob("step-*"), reverse=True) if folder.name <= last.name]
    whole = [folder for folder in folders if (folder / MANIFEST).exists()]
    for folder in folders:
        if folder not in whole[:keep] and folder not in (last, best):
            remove(folder)


def remove(folder: Path) -> None:
    """Removes what is left of a checkpoint; of one that was saved elsewhere the link alone."""
    if folder.is_symlink():
        folder.unlink(missing_ok=True)
    else:
        shutil.rmtree(folder, ignore_errors=True)


def link_checkpoint(root: Path, folder: Path) -> None:
    """Has `root` name a checkpoint that was saved elsewhere, so that it is found there. Raises OSError."""
    link = root / folder.name
    remove(link)
    link.symlink_to(folder, target_is_directory=True)


def weights_sha256(folder: Path, manifest: Manifest) -> str:
    """Returns SHA-256 (hex) over the weights' bytes (float32, little endian), by layer, then by parameter name.

    A tied parameter counts once, with its first layer.
    """
    from safetensors import safe_open

    places: list[tuple[int, str, Path]] = []
    for entry in manifest.groups:
        with safe_open(str(folder / entry.file), framework="np") as file:
            names = [key for key in file.keys() if key.startswith(f"{PARAMETER}/")]  # noqa: SIM118
        places += [(entry.layers[0], name, folder / entry.file) for name in names]
    digest = hashlib.sha256()
    for _, name, path in sorted(places):
        with safe_open(str(path), framework="np") as file:
            digest.update(file.get_tensor(name).tobytes())
    return digest.hexdigest()


PARAMETER = "parameter"
"""Kind of value that a group's file has beside the optimizer's; "KIND/NAME" names each of its tensors."""
