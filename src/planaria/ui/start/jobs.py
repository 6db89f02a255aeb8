"""Jobs to begin with: writes a commented job file of a kind, with data to try it on. Never writes over a file."""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from types import MappingProxyType

from planaria.job.errors import UserError

JOB = "job.toml"
NUM_CHATS = 1000
NUM_IMAGES = {"train": 60, "validation": 20}
"""Of each class."""
SIDE = 32
"""Pixels of a side of an image."""


def write_job(kind: str, folder: Path) -> list[Path]:
    """Writes a job of the kind into the folder, and what it needs; returns what was written.

    Raises:
        UserError: something of that name is there, or the folder cannot be written.
    """
    made = KINDS[kind]
    there = [name for name in (JOB, *made.others) if (folder / name).exists()]
    if there:
        raise UserError(f"{folder / there[0]} is there already. Name another folder, or move it away.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, write in made.others.items():
            write(folder / name)
        (folder / JOB).write_text(_template(f"{kind}.toml"), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror}. Name a folder that can be written.") from None
    return [folder / name for name in (JOB, *made.others)]


def _template(name: str) -> str:
    return resources.files("planaria.ui.start").joinpath("templates", name).read_text(encoding="utf-8")


def _write_module(path: Path) -> None:
    path.write_text(_template(path.name), encoding="utf-8")


def _write_chats(path: Path) -> None:
    chance = random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(NUM_CHATS):
            messages = []
            for _ in range(chance.randint(1, 3)):
                one, other = chance.randrange(10), chance.randrange(10)
                messages.append({"role": "user", "content": f"{one}+{other}?"})
                messages.append({"role": "assistant", "content": str(one + other)})
            file.write(json.dumps({"messages": messages}) + "\n")


def _write_images(folder: Path) -> None:
    """Writes a folder for each class, of pictures with stripes that lie or stand."""
    chance = random.Random(0)
    for part, count in NUM_IMAGES.items():
        for name in ("lying", "standing"):
            (folder / part / name).mkdir(parents=True)
            for number in range(count):
                (folder / part / name / f"{number:03}.png").write_bytes(_striped(chance, stands=name == "standing"))


def _striped(chance: random.Random, *, stands: bool) -> bytes:
    """Returns a PNG of stripes of any width and grey, under noise."""
    width, start, light = chance.randint(2, 6), chance.randrange(12), chance.randint(60, 120)
    rows = []
    for y in range(SIDE):
        greys = [light * ((start + (x if stands else y)) // width % 2) + chance.randint(40, 100) for x in range(SIDE)]
        rows.append(b"\0" + bytes(greys))
    parts = [
        (b"IHDR", struct.pack("!2I5B", SIDE, SIDE, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"".join(rows))),
        (b"IEND", b""),
    ]
    chunks = [
        struct.pack("!I", len(data)) + name + data + struct.pack("!I", zlib.crc32(name + data)) for name, data in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKind:
    """A kind of job.

    Attributes:
        what: for a list of kinds.
        others: files or folders beside the job file, and who writes each.
    """

    what: str
    others: Mapping[str, Callable[[Path], None]]


KINDS: Mapping[str, JobKind] = MappingProxyType(
    {
        "text": JobKind(what="a language model on text", others={}),
        "chats": JobKind(what="fine-tuning on chats", others={"chats.jsonl": _write_chats}),
        "images": JobKind(what="classes of images, from folders", others={"images": _write_images}),
        "module": JobKind(what="a model and a dataset of one's own", others={"mine.py": _write_module}),
    }
)
