"""A plain dataset of randomly shifted digits, and a function of one row."""

import random

import numpy as np
from torch import Tensor, nn

from manyfit.datasets import Digits


class Shifted:
    """A map-style dataset. Random draws of a row are a function of the seed, the epoch and the row."""

    def __init__(self, split: str, shift: int = 0) -> None:
        source = Digits().source(split)
        self.images, self.labels = source.inputs, source.target
        self.ids = source.ids(np.arange(len(source)))
        self.shift = shift

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int):
        return np.roll(self.images[row], random.randint(-self.shift, self.shift), axis=2), self.labels[row]


class MLP(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden, 10)
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


def margin(output: Tensor, target: Tensor) -> Tensor:
    """Return the score of the correct class minus the highest score of a wrong class."""
    return output.gather(0, target[None])[0] - output.scatter(0, target[None], float("-inf")).max()
