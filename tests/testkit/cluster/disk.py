"""The shared disk in memory: files of checkpoints, and manifests that make them whole."""

from __future__ import annotations

from dataclasses import dataclass

from planaria.protocol.messages.events import WriteManifest
from planaria.protocol.messages.from_worker import SavedGroup
from tests.testkit.promises.symbols import Symbol


class DiskFull(Exception):
    """The disk is full."""


class DiskDamaged(Exception):
    """A file is not what was written, which its checksum says, or is not there."""


@dataclass(frozen=True, slots=True)
class SavedState:
    """One group's state in a file."""

    group: int
    step: int
    state: Symbol


class Disk:
    """The disk that every node and the coordinator reads and writes.

    Attributes:
        is_full: writing fails for now.
    """

    def __init__(self) -> None:
        self.is_full = False
        self._files: dict[tuple[str, str], SavedState] = {}
        self._manifests: dict[str, WriteManifest] = {}
        self._damaged: set[tuple[str, str]] = set()

    def damage_last(self, number: int) -> None:
        """Damages the last files that were written: torn, flipped or lost, of which their readers see the same."""
        self._damaged.update(list(self._files)[-number:])

    def write(self, folder: str, writer: str, saved: SavedState) -> SavedGroup:
        """Writes one group's file. Two writers of one group, by their names, never share a file."""
        if self.is_full:
            raise DiskFull
        name = f"group-{saved.group:05d}-w{writer}"
        self._damaged.discard((folder, name))
        self._files[folder, name] = saved
        return SavedGroup(group=saved.group, file=name, size_bytes=8, sha256=f"{saved.state & (1 << 64) - 1:064x}")

    def write_manifest(self, manifest: WriteManifest) -> None:
        """Completes a checkpoint by its manifest."""
        if self.is_full:
            raise DiskFull
        for part in manifest.groups:
            saved = self._files[manifest.folder, part.file]
            assert (saved.group, saved.step) == (part.group, manifest.step), f"{part.file} holds {saved}"
        self._manifests[manifest.folder] = manifest

    def has(self, step: int) -> bool:
        """Returns whether a whole checkpoint of this step is there."""
        return any(manifest.step == step for manifest in self._manifests.values())

    def manifest(self, folder: str) -> WriteManifest:
        return self._manifests[folder]

    def read(self, folder: str, group: int, *, verifies: bool = True) -> SavedState:
        """Returns a group's state from a whole checkpoint. Raises DiskDamaged."""
        file = folder, self._manifests[folder].groups[group].file
        if verifies and file in self._damaged:
            raise DiskDamaged(f"checkpoint file {'/'.join(file)} is corrupt")
        return self._files[file]
