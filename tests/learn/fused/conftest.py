"""Runs that are trained in a group, and their twins that are trained alone."""

import itertools

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from manyfit.data import ArraySource, Order
from manyfit.data.walk import walk_together
from manyfit.learn.group import Part
from manyfit.learn.torch.fused.dropout import CounterDropout, make_keys
from manyfit.learn.torch.fused.learner import FusedLearner
from manyfit.learn.torch.learner import TorchLearner
from manyfit.learn.torch.objective import TorchObjective
from manyfit.learn.torch.update import Update

CPU = torch.device("cpu")


class MLP(nn.Sequential):
    def __init__(self, p=0.0):
        super().__init__(nn.Linear(16, 24), nn.ReLU(), nn.Dropout(p), nn.Linear(24, 5))


class LeNet(nn.Module):
    """Convolutions with batch norm."""

    def __init__(self, p=0.0):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
                                  nn.Conv2d(4, 6, 2), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout2d(p))  # fmt: skip
        self.head = nn.Linear(6, 5)

    def forward(self, x):
        return self.head(self.body(x.view(-1, 1, 4, 4)).flatten(1))


class GroupNormNet(nn.Module):
    def __init__(self, p=0.0):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.GELU(), nn.AvgPool2d(2)
        )
        self.p = nn.Dropout(p)
        self.head = nn.Linear(32, 5)

    def forward(self, x):
        return self.head(self.p(self.body(x.view(-1, 1, 4, 4)).flatten(1)))


class Transformer(nn.Module):
    """Embeddings and an encoder."""

    def __init__(self, p=0.0):
        super().__init__()
        self.embed = nn.Embedding(7, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=p, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        words = (x * 3).abs().long().clamp(max=6)
        return self.head(self.layer(self.embed(words)).mean(1))


class Segments(nn.Module):
    """A convolution and a transposed one."""

    def __init__(self, p=0.0):
        super().__init__()
        self.down = nn.Conv2d(1, 4, 2, stride=2)
        self.drop = nn.Dropout(p)
        self.up = nn.ConvTranspose2d(4, 3, 2, stride=2)
        self.head = nn.Linear(48, 5)

    def forward(self, x):
        return self.head(self.up(self.drop(F.relu(self.down(x.view(-1, 1, 4, 4))))).flatten(1))


class Bag(nn.Module):
    def __init__(self, p=0.0):
        super().__init__()
        self.bag = nn.EmbeddingBag(9, 8, mode="mean")
        self.drop = nn.Dropout(p)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.drop(torch.tanh(self.bag((x * 4).abs().long().clamp(max=8)))))


MODELS = [MLP, LeNet, GroupNormNet, Transformer, Segments, Bag]
OPTIONS = [
    {"lr": 0.02 * (i + 1), "momentum": 0.05 + 0.1 * i, "weight_decay": 1e-3 * i, "nesterov": True}
    for i in range(8)
]


def source(rows=77, dtype=np.float32):
    state = np.random.RandomState(0)
    return ArraySource(state.randn(rows, 16).astype(dtype), state.randint(0, 5, rows))


def schedule(optimizer, number):
    kinds = [
        lambda: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100),
        lambda: torch.optim.lr_scheduler.StepLR(optimizer, 7 + number, 0.8),
        lambda: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, 120),
    ]
    return {"": kinds[number % 3]()}


def run(model, number, options, seed=None, dtype=torch.float32, optimizer=torch.optim.SGD, scheduled=True,
        metrics=None, rate=0.0, device=CPU, loss=F.cross_entropy, **update):  # fmt: skip
    """One run: the model with initial weights of its own, and an optimizer with these options."""
    torch.manual_seed(100 + number)
    module = model(rate).to(dtype).to(device)
    made = optimizer(module.parameters(), **options)
    schedules = schedule(made, number) if scheduled else {}
    own = {key: update.pop(key) for key in ("accumulate", "average", "ema", "precision") if key in update}
    return TorchLearner(
        module, TorchObjective(module, loss, device), Update({"": made}, schedules, steps_per_epoch=10, **update),
        metrics=metrics or {}, seed=number if seed is None else seed, **own,
    )  # fmt: skip


def walk(runs, shared=True, start=0, data=None):
    data = data or source()
    orders = [Order(8, seed=5 if shared else each.seed) for each in runs]
    return walk_together([data] * len(runs), orders, start)


def fuse(runs, shared=True, start=0, data=None, steps=1):
    first = list(itertools.islice(walk(runs, shared, start, data), steps))
    return FusedLearner.open([Part(each) for each in runs], first)


def train_alone(each, order, steps, data=None):
    """Train one run by itself, with the masks that it would have in a group; return its loss after each step."""
    batches, losses = (data or source()).batches(order, each.step), []
    for _ in range(steps):
        keys = torch.from_numpy(make_keys([each.stream], each.step))[0].to(each.device)
        with CounterDropout(keys):
            each.train(batches, 1)
        losses.append(float(each.take()["train_loss"][0]))
    return losses


def train_together(group, batches, steps):
    """Train a group; return the losses of its runs after each step, (steps, runs)."""
    losses = []
    for _ in range(steps):
        group.train(batches, 1)
        losses.append([float(value) for value in group.take()["train_loss"]])
    return np.array(losses)


def bits(learner):
    return [{name: t.clone() for name, t in state.tensors.items()} for state in learner.state()]
