"""A dataset of the images in a folder, which has a folder for each class: `source = "planaria.data.images:folder"`.

Needs Pillow (`pip install pillow`, or in a clone `pip install -e ".[images]"`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from planaria.data.reading.sources import DataError
from planaria.job.errors import in_one_line
from planaria.job.sections.data import OnBadRow

_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
_LOOKED_AT_ONCE = 1024


class ImageFolder:
    """Images by number, with the numbers of their classes; a map-style dataset.

    An item has `pixel_values`, float32 of shape (3, size, size), and `labels`. Classes are numbered in the order of
    their names; they come in turn, and the images of each in the order of theirs.

    Args:
        path: the folder; each folder in it is a class, with all images below it.
        size: pixels of a side: images are scaled until the shorter side has so many, and cut to the middle square.
        mean: of each channel of red, green and blue, between 0 and 1; it is subtracted.
        std: of each channel; what is left is divided by it.
        flip: whether half of the images are mirrored, by chance, each time.
        on_bad_row: what to do about an image that cannot be read.

    Attributes:
        classes: their names.
        bad_rows: how many images were left out, and the first of them, with the reason.

    Raises:
        DataError: there are no images, or one cannot be read.
    """

    def __init__(
        self,
        path: Path,
        size: int,
        mean: Sequence[float],
        std: Sequence[float],
        flip: bool,
        on_bad_row: OnBadRow,
    ) -> None:
        self.classes = sorted(one.name for one in path.iterdir() if one.is_dir()) if path.is_dir() else []
        found = [
            (at, number, name)
            for number, of_class in enumerate(self.classes)
            for at, name in enumerate(_image_names(path / of_class))
        ]
        if not found:
            kinds = ", ".join(sorted(_SUFFIXES))
            raise DataError(f"data.config.path = {str(path)!r} has no folders of images ({kinds}), one for each class.")
        self._size, self._flip = size, flip
        self._mean, self._std = (torch.tensor(one).view(3, 1, 1) for one in (mean, std))
        found.sort()
        bad = _bad([name for *_, name in found])
        if bad and on_bad_row is OnBadRow.REFUSE:
            raise _cannot_read(*next(iter(bad.items())))
        self._names = [name for *_, name in found if name not in bad]
        self._labels = np.array([number for _, number, name in found if name not in bad])
        self.bad_rows = (len(bad), ": ".join(next(iter(bad.items()), ())))

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        path = self._names[number]
        try:
            with _image().open(path) as opened:
                pixels = self._square(opened.convert("RGB"))
        except OSError as error:
            raise _cannot_read(path, in_one_line(error)) from error
        values = (torch.from_numpy(pixels).permute(2, 0, 1).float() / 255 - self._mean) / self._std
        if self._flip and torch.rand(()) < 0.5:
            values = values.flip(-1)
        return {"pixel_values": values.contiguous(), "labels": torch.tensor(int(self._labels[number]))}

    def _square(self, image: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
        ratio = self._size / min(image.size)
        width, height = (max(self._size, round(side * ratio)) for side in image.size)
        left, top = (width - self._size) // 2, (height - self._size) // 2
        scaled = image.resize((width, height), _image().Resampling.BILINEAR)
        return np.array(scaled.crop((left, top, left + self._size, top + self._size)))


def folder(
    path: str,
    size: int = 224,
    mean: Sequence[float] = (0.5, 0.5, 0.5),
    std: Sequence[float] = (0.5, 0.5, 0.5),
    flip: bool = False,
    on_bad_row: str = OnBadRow.REFUSE.value,
) -> ImageFolder:
    """Returns the images of a folder; see `ImageFolder`. What the job file has in [data.config] are its arguments."""
    return ImageFolder(Path(path), size, mean, std, flip, OnBadRow(on_bad_row))


def _image() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError("Images are read by Pillow, which is not installed: pip install pillow.") from error
    return Image


def _image_names(folder: Path) -> list[str]:
    """Returns the paths of all images below a folder, in order: texts, which are small where there are many."""
    found = [
        os.path.join(at, name)
        for at, _, names in os.walk(folder)
        for name in names
        if os.path.splitext(name)[1].lower() in _SUFFIXES and os.path.isfile(os.path.join(at, name))
    ]
    return sorted(found, key=lambda name: name.split(os.sep))


def _bad(names: Sequence[str]) -> dict[str, str]:
    """Returns the images that cannot be read, and why."""
    bad: dict[str, str] = {}
    with ThreadPoolExecutor() as pool:
        for first in range(0, len(names), _LOOKED_AT_ONCE):
            some = names[first : first + _LOOKED_AT_ONCE]
            bad.update((name, reason) for name, reason in zip(some, pool.map(_reason, some), strict=True) if reason)
    return bad


def _reason(path: str) -> str:
    """Returns why an image cannot be read, by its beginning; "": it may be."""
    try:
        with _image().open(path) as opened:
            opened.verify()
    except (OSError, SyntaxError, ValueError) as error:
        return in_one_line(error)
    return ""


def _cannot_read(path: str, reason: str) -> DataError:
    return DataError(
        f"image {path} cannot be read ({reason}). Make it again, or set data.config.on_bad_row = "
        f'"{OnBadRow.SKIP.value}", which leaves out and counts what is broken at its beginning.'
    )
