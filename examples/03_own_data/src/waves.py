"""Points on a noisy wave, and a model that fits them."""

from typing import Annotated

import numpy as np
from annotated_types import Gt
from torch import Tensor, nn

from manyfit.data import ArraySource, Split


class Waves:
    def __init__(
        self, batch_size: int = 32, points: Annotated[int, Gt(9)] = 400, noise: float = 0.05
    ) -> None:
        self.batch_size = batch_size
        self.points = points
        self.noise = noise

    def source(self, split: Split) -> ArraySource:
        """Return every third point, with one offset per split, so that no row is in two splits."""
        start = {"train": 0, "validation": 1, "test": 2}[split]
        places = np.linspace(-3, 3, self.points)[start::3]
        noise = self.noise * np.random.RandomState(start).normal(size=len(places))
        heights = np.sin(2 * places) + noise
        ids = [f"x={place:+.4f}" for place in places]
        return ArraySource(places[:, None].astype(np.float32), heights[:, None].astype(np.float32), ids)


class Curve(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )

    def forward(self, places: Tensor) -> Tensor:
        return self.layers(places)
