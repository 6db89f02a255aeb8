"""AlexNet and VGG-19 as lists of layers, and a dataset of images that is made in Python: nothing is downloaded.

    planaria train examples/vision.toml

The layers are those of torchvision's models; `width` multiplies their channels, so that small ones train in seconds.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

ALEXNET = ((64, 11, 4, 2), (192, 5, 1, 2), (384, 3, 1, 1), (256, 3, 1, 1), (256, 3, 1, 1))
"""Channels, kernel, stride and padding of each convolution (Krizhevsky 2014)."""
ALEXNET_POOLS = (0, 1, 4)
"""Convolutions that are pooled: windows of 3, two apart."""
VGG19 = (64, 64, 128, 128, 256, 256, 256, 256, 512, 512, 512, 512, 512, 512, 512, 512)
"""Channels of each convolution of 3 by 3 (Simonyan and Zisserman 2015, configuration E)."""
VGG19_POOLS = (1, 3, 7, 11, 15)
"""Convolutions that are pooled: windows of 2."""
INNER = 4096
"""Width of the two layers before the classes."""


def convolution(inputs: int, outputs: int, kernel: int, stride: int, padding: int, *after: nn.Module) -> nn.Sequential:
    made = nn.Conv2d(inputs, outputs, kernel, stride, padding)
    nn.init.kaiming_normal_(made.weight, mode="fan_out", nonlinearity="relu")
    nn.init.zeros_(made.bias)
    return nn.Sequential(made, nn.ReLU(), *after)


def alexnet(width: float = 1.0, classes: int = 1000, dropout: float = 0.5) -> list[nn.Module]:
    """Eight layers; takes images of 63 pixels a side or more."""
    channels = [3, *(int(width * outputs) for outputs, *_ in ALEXNET)]
    layers: list[nn.Module] = [
        convolution(channels[at], channels[at + 1], *shape, *([nn.MaxPool2d(3, 2)] if at in ALEXNET_POOLS else []))
        for at, (_, *shape) in enumerate(ALEXNET)
    ]
    inner, flat = int(width * INNER), 36 * channels[-1]
    return [
        *layers,
        nn.Sequential(nn.AdaptiveAvgPool2d(6), nn.Flatten(), nn.Dropout(dropout), nn.Linear(flat, inner), nn.ReLU()),
        nn.Sequential(nn.Dropout(dropout), nn.Linear(inner, inner), nn.ReLU()),
        nn.Linear(inner, classes),
    ]


def vgg19(width: float = 1.0, classes: int = 1000, dropout: float = 0.5) -> list[nn.Module]:
    """Nineteen layers; takes images of 32 pixels a side or more."""
    channels = [3, *(int(width * outputs) for outputs in VGG19)]
    layers: list[nn.Module] = [
        convolution(channels[at], channels[at + 1], 3, 1, 1, *([nn.MaxPool2d(2)] if at in VGG19_POOLS else []))
        for at in range(len(VGG19))
    ]
    inner, flat = int(width * INNER), 49 * channels[-1]
    return [
        *layers,
        nn.Sequential(nn.AdaptiveAvgPool2d(7), nn.Flatten(), nn.Linear(flat, inner), nn.ReLU(), nn.Dropout(dropout)),
        nn.Sequential(nn.Linear(inner, inner), nn.ReLU(), nn.Dropout(dropout)),
        nn.Linear(inner, classes),
    ]


class Stripes:
    """Images of noisy stripes; what must be told is the direction in which they run.

    An item is a pair: the image, and the number of its class. Training images are cut at a random place: torch's random
    numbers are seeded for each item, so that every run cuts alike.
    """

    def __init__(self, count: int, size: int, classes: int, first: int, augment: bool) -> None:
        self._count, self._size, self._classes, self._first, self._augment = count, size, classes, first, augment

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        label = number % self._classes
        noise = np.random.default_rng(self._first + number)  # a function of the number: the data are what they are
        angle = np.pi * label / self._classes
        y, x = np.mgrid[: self._size + 8, : self._size + 8]
        stripes = np.sin((np.cos(angle) * x + np.sin(angle) * y) * 0.8 + noise.uniform(0, 6.3))
        image = torch.from_numpy(stripes + noise.normal(0, 0.3, (3, *stripes.shape))).float()
        top, left = torch.randint(0, 8, (2,)).tolist() if self._augment else (4, 4)
        return image[:, top : top + self._size, left : left + self._size], label


def stripes(count: int = 512, size: int = 64, classes: int = 4, first: int = 0, augment: bool = True) -> Stripes:
    """A dataset for `data.source`; other images have another `first`."""
    return Stripes(count, size, classes, first, augment)
