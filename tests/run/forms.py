"""Models and data sets of every form, as modules of a project."""

from __future__ import annotations

import pytest

FORMS = '''
import random
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from models import MLP


class WithLoss(MLP):
    """Returns (outputs, loss), one loss for the batch."""

    def forward(self, images, target=None):
        output = super().forward(images)
        return {"logits": output}, None if target is None else F.cross_entropy(output, target)


class WithRowLoss(MLP):
    """Returns (output, losses), one for each row."""

    def forward(self, images, target):
        output = super().forward(images)
        return output, F.cross_entropy(output, target, reduction="none")


class UpdatesItself(MLP):
    """Has its own optimiser."""

    def __init__(self, hidden: int = 8) -> None:
        super().__init__(hidden)
        self.own = torch.optim.Adam(self.parameters(), lr=0.01)

    def forward(self, images, target=None):
        output = super().forward(images)
        if self.training:
            self.own.zero_grad()
            F.cross_entropy(output, target).backward()
            self.own.step()
        return output, None


class Pair(nn.Module):
    """Two networks with an optimiser each, and a step of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 8))
        self.decoder = nn.Linear(8, 10)

    def forward(self, images):
        return self.decoder(self.encoder(images))

    def train_step(self, batch, optimizers):
        loss = F.cross_entropy(self(batch.inputs), batch.target)
        for optimizer in optimizers.values():
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers.values():
            optimizer.step()
        return loss


class ByName(MLP):
    def forward(self, left, right):
        return super().forward(left - right)


class Tied(nn.Module):
    """Two names for the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)
        self.second.weight = self.first.weight

    def forward(self, images):
        return self.last(self.second(self.first(images.flatten(1)).relu()).relu())


class Strided(nn.Module):
    """Weights that do not lie in order."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.last = nn.Conv2d(2, 4, 3), nn.Linear(4 * 2 * 6, 10)
        self.convolution.to(memory_format=torch.channels_last)
        self.register_buffer("turned", torch.ones(4, 3).t())

    def forward(self, images):
        return self.last(self.convolution(images.reshape(-1, 2, 4, 8)).relu().flatten(1))


class Noisy(MLP):
    """Draws from every generator, in training and when it predicts."""

    def forward(self, images):
        return super().forward(images) * (1 + 0.1 * (random.random() + np.random.rand() + torch.rand(()).item()))


class Wrong(MLP):
    def forward(self, images):
        return [1, 2, 3]


def worst_class(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax() != target).float()


def by_hand(output, target) -> float:
    return float(output.argmax().item() == int(target))


def not_a_number(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target) * float("nan")
'''

SETS = '''
import random
import numpy as np
import torch
from manyfit.data import ArraySource, Batch, DatasetSource, IterableSource


def rows(split, count=64):
    state = np.random.RandomState(["train", "validation", "test"].index(split))
    target = np.arange(count) % 10
    centres = np.random.RandomState(9).normal(size=(10, 64))
    return (centres[target] + 0.5 * state.normal(size=(count, 64))).astype(np.float32), target


class Base:
    def __init__(self, batch_size: int = 16) -> None:
        self.batch_size = batch_size


class Named(Base):
    def source(self, split):
        inputs, target = rows(split)
        return ArraySource({"left": inputs, "right": np.zeros_like(inputs), "extra": inputs}, target)


class Weighted(Base):
    def source(self, split):
        inputs, target = rows(split)
        return ArraySource(inputs, target, weight=(target < 5).astype(np.float32))


class Unbalanced(Base):
    def source(self, split):
        inputs, target = rows(split)
        return ArraySource(inputs, np.where(target < 8, 0, target))


class Rows:
    def __init__(self, split, noise=0.0):
        self.inputs, self.target = rows(split)
        self.noise = noise

    def __len__(self):
        return len(self.target)

    def __getitem__(self, row):
        return self.inputs[row] * np.float32(1 + self.noise * random.random()), int(self.target[row])


class Plain(Base):
    """Returns a dataset, and no source."""

    def source(self, split):
        return Rows(split, noise=0.1)


class Generated(Base):
    """A generator function: it can only be read from the beginning."""

    def source(self, split):
        inputs, target = rows(split)

        def generate():
            for x, y in zip(inputs, target):
                yield x * np.float32(1 + 0.1 * random.random()), int(y)

        return IterableSource(generate, count=len(target))


class Drawing(ArraySource):
    """A source that draws from the global generators."""

    def batches(self, order, start=0):
        for batch in super().batches(order, start):
            noise = 1 + 0.1 * (random.random() + np.random.rand() + torch.rand(()).item())
            yield Batch(batch.inputs * np.float32(noise), batch.target, batch.index)


class Drawn(Base):
    def source(self, split):
        return Drawing(*rows(split))


class Nothing(Base):
    def source(self, split):
        return 3
'''


@pytest.fixture
def forms(project):
    project.write("src/forms.py", FORMS)
    project.write("src/sets.py", SETS)
    return project


def falls(result):
    losses = [e.values["train_loss"] for e in result.history if "train_loss" in e.values]
    return losses[-1] < losses[0]


OWN = {"train__loss": None}
