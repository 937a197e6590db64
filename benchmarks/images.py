"""Models for images of 28 x 28 numbers, and data for them that is made. Benchmarks copy this file into a project."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from manyfit.data import ArraySource


class Images:
    def __init__(self, batch_size: int = 32, rows: int = 60_000):
        self.batch_size, self.rows = batch_size, rows

    def source(self, split):
        count, seed = {"train": (self.rows, 0), "validation": (10_000, 1)}.get(split, (0, 0))
        if not count:
            return None
        made = np.random.default_rng(seed)
        target = made.integers(0, 10, count)
        images = made.standard_normal((count, 1, 28, 28), dtype=np.float32)
        images[np.arange(count), 0, 0, target] += 2
        return ArraySource(images, target)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(784, 512), nn.Linear(512, 10)

    def forward(self, x):
        return self.last(F.relu(self.first(x.flatten(1))))


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5)
        self.dense = nn.ModuleList([nn.Linear(256, 120), nn.Linear(120, 84), nn.Linear(84, 10)])

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = F.max_pool2d(F.relu(self.second(x)), 2).flatten(1)
        return self.dense[2](F.relu(self.dense[1](F.relu(self.dense[0](x)))))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        rows, length, width = x.shape
        parts = self.project(self.before(x)).view(rows, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        query, key, value = parts[0], parts[1], parts[2]
        seen = ((query @ key.transpose(-1, -2)) * (width // 4) ** -0.5).softmax(-1) @ value
        x = x + self.out(seen.transpose(1, 2).reshape(rows, length, width))
        return x + self.narrow(F.gelu(self.widen(self.between(x))))


class Transformer(nn.Module):
    def __init__(self, width: int = 128):
        super().__init__()
        self.embed, self.place = nn.Linear(28, width), nn.Parameter(torch.zeros(28, width))
        self.blocks, self.head = nn.Sequential(Block(width), Block(width)), nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.blocks(self.embed(x.squeeze(1)) + self.place).mean(1))


MODELS = {"mlp": Mlp, "lenet": LeNet, "transformer": Transformer}
