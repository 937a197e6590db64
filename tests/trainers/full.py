"""Trainers with everything that a training may carry from step to step."""

FULL = '''
import random
from collections import deque

import torch
from torch import nn
from torch.nn import functional as F

from manyfit.trainers import Trainer


class Pool:
    """Earlier samples, drawn with a generator of its own."""

    def __init__(self, size):
        self.images = deque(maxlen=size)
        self.generator = torch.Generator().manual_seed(5)
        self.chance = random.Random(2)

    def mix(self, fake):
        self.images.append(fake.detach()[:1])
        if self.chance.random() < 0.5:
            return fake
        chosen = torch.randint(len(self.images), (1,), generator=self.generator)
        return torch.cat([fake[1:], self.images[int(chosen)]])


class Full(Trainer):
    """Two networks, two optimizers, two schedules, a scaler, a pool with its own generators, a counter."""

    def __init__(self, width: int = 8, alpha: float = 0.5, **kwargs):
        self.alpha = alpha
        self.critic = nn.Sequential(nn.Linear(64, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 1))
        self.maker = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 64))
        self.moves = {"critic": torch.optim.SGD(self.critic.parameters(), 0.05, momentum=0.9),
                      "maker": torch.optim.Adam(self.maker.parameters(), 0.01)}
        self.schedules = [torch.optim.lr_scheduler.StepLR(self.moves["maker"], 5, 0.5),
                          torch.optim.lr_scheduler.ExponentialLR(self.moves["critic"], 0.95)]
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
        self.pool, self.count, self.best = Pool(6), 0, None
        self.smooth = torch.zeros(64)

    def train_step(self, batch):
        real = batch[0]
        self.count += 1
        fake = self.maker(torch.randn(len(real), 4))
        self.smooth = 0.9 * self.smooth + 0.1 * fake.detach().mean(0)
        losses = {}
        for name, compute in (("critic", self.judge), ("maker", self.fool)):
            losses[name] = compute(real, fake)
            self.moves[name].zero_grad()
            self.scaler.scale(losses[name]).backward()
            self.scaler.step(self.moves[name])
        self.scaler.update()
        self.schedules[0].step()
        if self.count % 3 == 0:
            self.schedules[1].step()
        return {**losses, "pool": float(len(self.pool.images))}

    def judge(self, real, fake):
        mixed = self.pool.mix(fake.detach())
        return F.softplus(-self.critic(real)).mean() + F.softplus(self.critic(mixed)).mean()

    def fool(self, real, fake):
        near = ((fake.mean(0) - self.smooth) ** 2).mean()
        return F.softplus(-self.critic(fake)).mean() + self.alpha * near / self.count

    def val_step(self, batch):
        return {"loss": F.softplus(-self.critic(batch[0]))[:, 0]}

    def on_epoch_end(self, row):
        self.alpha *= 0.9
        if self.best is None or row["val_loss"] < self.best:
            self.best = row["val_loss"]


class FullEpoch(Full):
    def train_epoch(self):
        total = 0.0
        for batch in self.train_loader:
            losses = self.train_step(batch)
            self.log("maker", losses["maker"])
            total += losses["critic"].item()
        return total / len(self.train_loader)

    def val_epoch(self):
        scores = [F.softplus(-self.critic(x)).mean().item() for x, _ in self.val_loader]
        return {"loss": sum(scores) / len(scores), "batches": len(scores)}


class FullLoop(Full):
    def train(self):
        for epoch in range(self.start_epoch, self.num_epochs):
            self.train_epoch()
            self.seen = self.val_epoch()["loss"]
            self.alpha = self.alpha * 0.8 + 0.01 * self.seen


class Local(Full):
    """Counts in a local variable."""

    def train(self):
        rounds = 0
        for epoch in range(self.start_epoch, self.num_epochs):
            rounds += 1
            self.alpha = 0.1 * rounds
            self.train_epoch()


class Hidden(Full):
    """Draws from a generator that only a closure knows."""

    def __init__(self, **kwargs):
        super_init = Full.__init__
        super_init(self)
        drawn = torch.Generator().manual_seed(0)
        self.noise = lambda shape: torch.randn(shape, generator=drawn)

    def judge(self, real, fake):
        return super().judge(real + 0.1 * self.noise(real.shape), fake)
'''
TREE = {
    "project_name": "test",
    "seed": 3,
    "data": {"class": "points.Blobs", "batch_size": 16},
    "trainer": {"class": "full.Full"},
    "train": {"epochs": 3, "threads": 1, "device": "cpu"},
}
