"""Keeps checkpoints on disk: one file a parameter group, and a manifest with checksums that is renamed into place last.

A checkpoint knows nothing of plans: any plan can write one, and any other can read it. No torch here.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from pathlib import Path

import msgspec

from planaria.checkpoint.numerics import NUMERICS_VERSION
from planaria.checkpoint.retries import StoreError
from planaria.checkpoint.store import Place, below, store_at
from planaria.job.errors import UserError
from planaria.job.history import History
from planaria.job.values import is_url
from planaria.protocol.messages.from_worker import SavedGroup

MANIFEST = "manifest.json"
ELSEWHERE = "url"
"""File in a run folder that says where a checkpoint lies which is not there."""
_PART = ".part"
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
        start_steps: steps that the optimizer had made before the run's first.
    """

    version: int
    step: int
    job_fingerprint: str
    exponents: tuple[int, ...]
    groups: tuple[GroupEntry, ...]
    numerics_version: int = 1
    history: History = ()
    start_steps: int = 0


class _Version(msgspec.Struct):
    version: int


def step_folder(root: Path, step: int) -> Path:
    return root / f"step-{step:08d}"


def write_manifest(
    folder: Place,
    *,
    step: int,
    job_fingerprint: str,
    exponents: tuple[int, ...],
    saved: tuple[SavedGroup, ...],
    layers: tuple[tuple[int, ...], ...],
    history: History = (),
    start_steps: int = 0,
    replaces: bool = True,
) -> None:
    """Makes a checkpoint whole. Its files must be written.

    Raises:
        OSError: it cannot be written; FileExistsError: another is there, and `replaces` is false.
    """
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
        start_steps=start_steps,
    )
    store_at(folder).publish(MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=1), replaces=replaces)


def read_manifest(folder: Place, job_fingerprint: str | None = None, *, verify: bool = True) -> Manifest:
    """Reads a checkpoint's manifest, and with `verify` every file's checksum; of files in a store the sizes.

    Raises:
        UserError: it is not whole, damaged, of another job, or of another version; the message names the file.
    """
    path = below(folder, MANIFEST)
    try:
        content = store_at(folder).read(MANIFEST)
        version = msgspec.json.decode(content, type=_Version).version
        if not 1 <= version <= FORMAT_VERSION:
            raise UserError(
                f"checkpoint {path} has format {version}; this Planaria reads formats up to {FORMAT_VERSION}. "
                "Use the version that wrote it, or a newer one."
            )
        manifest = msgspec.json.decode(content, type=Manifest)
    except FileNotFoundError:
        raise UserError(f"checkpoint {folder} has no {MANIFEST}: it was not finished") from None
    except StoreError as error:
        raise UserError(f"checkpoint {path} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"checkpoint {path} is damaged: {error}") from None
    if job_fingerprint is not None and version > 1 and manifest.job_fingerprint != job_fingerprint:
        raise UserError(
            f"checkpoint {folder} belongs to another job: [model] or [train] differ. "
            "Resume with the job file that it was made with, or start a new run with --name."
        )
    for entry in manifest.groups if verify else ():
        _verify(folder, entry)
    return manifest


def _verify(folder: Place, entry: GroupEntry) -> None:
    try:
        is_good = store_at(folder).check(entry.file, entry.size_bytes, entry.sha256)
    except FileNotFoundError:
        raise _missing(below(folder, entry.file)) from None
    except StoreError as error:
        raise UserError(f"checkpoint file {below(folder, entry.file)} cannot be read: {error.strerror}") from None
    if not is_good:
        raise _corrupt(below(folder, entry.file))


def read_verified(folder: Place, entry: GroupEntry) -> bytes:
    """Reads a group's file, if it is what was written.

    Raises:
        UserError: it is missing or corrupt; the message names it.
    """
    try:
        data = store_at(folder).read(entry.file)
    except FileNotFoundError:
        raise _missing(below(folder, entry.file)) from None
    except StoreError as error:
        raise UserError(f"checkpoint file {below(folder, entry.file)} cannot be read: {error.strerror}") from None
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise _corrupt(below(folder, entry.file))
    return data


def _missing(path: Place) -> UserError:
    return UserError(f"checkpoint file {path} is missing")


def _corrupt(path: Place) -> UserError:
    return UserError(f"checkpoint file {path} is corrupt: its SHA-256 differs from the manifest's")


def place_of(folder: Path) -> Place:
    """Returns where a checkpoint of a run folder lies: there, or where a file in its place says."""
    try:
        return (folder / ELSEWHERE).read_text().strip()
    except (FileNotFoundError, NotADirectoryError):
        return folder


def newest(root: Path, job_fingerprint: str | None = None) -> tuple[Place, Manifest, list[str]]:
    """Finds the newest checkpoint that is whole, and one line for each newer one that is not.

    Raises:
        UserError: there is none.
    """
    complaints: list[str] = []
    for folder in sorted(root.glob("step-*"), reverse=True):
        place = place_of(folder)
        try:
            return place, read_manifest(place, job_fingerprint), complaints
        except UserError as error:
            complaints.append(str(error))
    reasons = "; ".join(complaints)
    raise UserError(
        f"no usable checkpoint in {root}{f': {reasons}' if reasons else ''}. "
        f"Train without --resume, as another run by --name NAME, or once {root.parent} is removed."
    )


def newest_in_store(url: str) -> Place:
    """Returns the newest checkpoint under a URL, or the one that it names. Raises UserError: there is none."""
    store = store_at(url)
    if store.has(MANIFEST):
        return url
    folders = sorted(name for name in store.subfolders() if name.startswith("step-"))
    found = next((name for name in reversed(folders) if store_at(below(url, name)).has(MANIFEST)), None)
    if found is None:
        raise UserError(f"no checkpoint under {url}. Name the folder of a run there, or a checkpoint (.../step-N).")
    return below(url, found)


def whole_steps(root: Path, last: int) -> tuple[int, ...]:
    """Returns the steps up to `last` of the checkpoints that are whole, by what their folders say."""
    steps = sorted(int(path.name.removeprefix("step-")) for path in root.glob("step-*") if _is_whole(path))
    return tuple(step for step in steps if step <= last)


def _is_whole(folder: Path) -> bool:
    """Returns whether a checkpoint of a run folder is whole, by what lies there."""
    return (folder / MANIFEST).exists() or (folder / ELSEWHERE).exists()


def retain(root: Path, keep: int, last: Path, best: Path | None = None, url: str = "") -> None:
    """Removes the oldest whole checkpoints beyond `keep`, and what is left of unfinished older ones.

    Args:
        root: folder of checkpoints.
        keep: how many stay.
        last: the newest good one. A later one is damaged, or the job would not have gone on from before it: it does
            not count, and stays for whoever wants to look at it until the job comes by again.
        best: stays whatever is newer.
        url: where the run's checkpoints are, if that is not `root`; what it keeps there goes with them.
    """
    folders = [folder for folder in sorted(root.glob("step-*"), reverse=True) if folder.name <= last.name]
    whole = [folder for folder in folders if _is_whole(folder)]
    kept = {*whole[:keep], last, best}
    for folder in folders:
        if folder not in kept:
            remove(folder)
    if url:
        names = {folder.name for folder in kept if folder is not None}
        for name in store_at(url).subfolders():
            if name.startswith("step-") and name <= last.name and name not in names:
                store_at(below(url, name)).remove()


def discard(place: Place) -> None:
    """Removes what was written of a checkpoint that is given up; one that is whole in a store is another's."""
    store = store_at(place)
    try:
        if is_url(str(place)) and store.has(MANIFEST):
            return
    except OSError:
        return
    store.remove()


def remove(folder: Path) -> None:
    """Removes what is left of a checkpoint; of one that was saved elsewhere the link alone."""
    if folder.is_symlink():
        folder.unlink(missing_ok=True)
    else:
        shutil.rmtree(folder, ignore_errors=True)


def known_places(root: Path) -> set[Place]:
    """Returns where checkpoints are or were begun that lie elsewhere, as the run folder says."""
    notes = [*root.glob(f"step-*/{ELSEWHERE}"), *root.glob(f"step-*/{ELSEWHERE}{_PART}")]
    return {note.read_text().strip() for note in notes}


def expect_checkpoint(root: Path, place: Place) -> None:
    """Notes that a checkpoint is about to be made whole elsewhere. Raises OSError."""
    if not is_url(str(place)):
        return
    link = root / _name(place)
    if not (link / ELSEWHERE).exists():
        remove(link)
    link.mkdir(exist_ok=True)
    (link / (ELSEWHERE + _PART)).write_text(f"{place}\n")


def forget_checkpoint(root: Path, place: Place) -> None:
    """Takes back what `expect_checkpoint` noted: another's is there."""
    link = root / _name(place)
    (link / (ELSEWHERE + _PART)).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # a folder of this name that has something in it stays
        link.rmdir()


def link_checkpoint(root: Path, place: Place) -> None:
    """Has `root` name a checkpoint that was saved elsewhere, so that it is found there. Raises OSError."""
    link = root / _name(place)
    if is_url(str(place)):
        (link / (ELSEWHERE + _PART)).rename(link / ELSEWHERE)
    else:
        remove(link)
        link.symlink_to(place, target_is_directory=True)


def link_all(root: Path, url: str) -> None:
    """Has a run folder name the checkpoints that are under a URL, or were begun there; those that it has itself stay.
    Raises OSError."""
    for name in store_at(url).subfolders():
        if name.startswith("step-") and not (root / name / MANIFEST).exists():
            place = below(url, name)
            expect_checkpoint(root, place)
            if store_at(place).has(MANIFEST):
                link_checkpoint(root, place)


def _name(place: Place) -> str:
    return str(place).rsplit("/", 1)[-1]


def weights_sha256(folder: Place, manifest: Manifest) -> str:
    """Returns SHA-256 (hex) over the weights' bytes (float32, little endian), by layer, then by parameter name.

    A tied parameter counts once, with its first layer.
    """
    store = store_at(folder)
    files = {entry.file: store.tensors(entry.file) for entry in manifest.groups}
    places = sorted(
        (entry.layers[0], name, entry.file)
        for entry in manifest.groups
        for name in files[entry.file].keys()  # noqa: SIM118
        if name.startswith(f"{PARAMETER}/")
    )
    digest = hashlib.sha256()
    for _, name, file in places:
        digest.update(files[file].get_tensor(name).tobytes())
    return digest.hexdigest()


PARAMETER = "parameter"
"""Kind of value that a group's file has beside the optimizer's; "KIND/NAME" names each of its tensors."""
