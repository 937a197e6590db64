"""The models and data of the benchmarks."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from manyfit.data import ArraySource
from manyfit.datasets import Digits as AllDigits
from manyfit.trainers import Trainer


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, images):
        return self.layers(images)


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5)
        self.dense = nn.Sequential(
            nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)
        )

    def forward(self, images):
        x = F.max_pool2d(F.relu(self.first(images)), 2)
        x = F.max_pool2d(F.relu(self.second(x)), 2)
        return self.dense(x.flatten(1))


class Digits(AllDigits):
    """The real digits, with as few rows held out as possible."""

    def __init__(self, batch_size: int = 32) -> None:
        super().__init__(batch_size, validation=0.01, test=0.01)


class Images:
    """Random images of 28 x 28 pixels."""

    def __init__(self, batch_size: int = 128, rows: int = 4096) -> None:
        self.batch_size = batch_size
        self.rows = rows

    def source(self, split: str) -> ArraySource | None:
        if split != "train":
            return None
        state = np.random.RandomState(0)
        images = state.rand(self.rows, 1, 28, 28).astype(np.float32)
        return ArraySource(images, state.randint(0, 10, self.rows).astype(np.int64))


class Networks:
    """Two networks that are trained against each other, with a hand-written step."""

    def __init__(self) -> None:
        self.maker = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 64))
        self.critic = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
        self.moves = {
            name: torch.optim.Adam(part.parameters(), lr=1e-3, fused=True)
            for name, part in (("critic", self.critic), ("maker", self.maker))
        }

    def step(self, real: torch.Tensor) -> dict[str, torch.Tensor]:
        """Train on one batch."""
        fake = self.maker(torch.randn(len(real), 32))
        critic = nn.functional.softplus(-self.critic(real)).mean()
        critic = critic + nn.functional.softplus(self.critic(fake.detach())).mean()
        self.moves["critic"].zero_grad(set_to_none=True)
        critic.backward()
        self.moves["critic"].step()
        maker = nn.functional.softplus(-self.critic(fake)).mean()
        self.moves["maker"].zero_grad(set_to_none=True)
        maker.backward()
        self.moves["maker"].step()
        return {"critic": critic, "maker": maker}


class Adversarial(Trainer):
    """The same step as a trainer."""

    def __init__(self, **kwargs: object) -> None:
        self.networks = Networks()
        self.maker, self.critic = self.networks.maker, self.networks.critic

    def train_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Train on one batch."""
        return self.networks.step(batch[0].flatten(1))
