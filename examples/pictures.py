"""Writes a folder of small images, a folder for each class: discs, squares and crosses on noise.

python examples/pictures.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image

SIDE = 32


def write(folder: Path, num_train: int = 240, num_validation: int = 48) -> None:
    """Writes FOLDER/train/CLASS/N.png and FOLDER/validation/CLASS/N.png."""
    chance = np.random.default_rng(0)
    for part, count in (("train", num_train), ("validation", num_validation)):
        for number in range(count):
            name = ("crosses", "discs", "squares")[number % 3]
            place = folder / part / name
            place.mkdir(parents=True, exist_ok=True)
            pixels = chance.integers(0, 90, (SIDE, SIDE, 3))
            pixels[shape(name, chance)] += chance.integers(80, 160, 3)
            Image.fromarray(pixels.astype(np.uint8)).save(place / f"{number}.png")


def shape(name: str, chance: np.random.Generator) -> np.ndarray:
    """Returns which pixels a shape of random size and place has."""
    radius = chance.integers(6, 11)
    x, y = (np.arange(SIDE) - centre for centre in chance.integers(radius, SIDE - radius, 2))
    across, down = np.abs(x)[:, None], np.abs(y)[None, :]
    if name == "discs":
        return np.asarray(across**2 + down**2 <= radius**2)
    within = np.maximum(across, down) <= radius
    return np.asarray(within & (np.minimum(across, down) <= radius // 4) if name == "crosses" else within)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
