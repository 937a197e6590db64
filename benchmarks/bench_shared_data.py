"""The time a study saves by building and hashing its data once per process: 64 short trials on a 500 MB array.

The same study is executed twice per round: once with separate data for every trial, once with shared data.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from unittest import mock

import torch
from timing import where

from manyfit.run.build.shared_data import SharedData
from manyfit.study.sweep import sweep

torch.set_num_threads(1)
MEGABYTES = int(os.environ.get("MEGABYTES", "500"))
TRIALS = int(os.environ.get("TRIALS", "64"))
ROUNDS = int(os.environ.get("ROUNDS", "2"))
CODE = """
import os
import numpy as np
from torch import nn
from manyfit.data import ArraySource

ROWS = int(os.environ["MEGABYTES"]) * 2**20 // 4 // 64

class Rows:
    def __init__(self, batch_size: int = 32):
        self.batch_size = batch_size

    def source(self, split):
        if split == "test":
            return None
        rows = ROWS if split == "train" else 64
        x = np.random.default_rng(len(split)).random((rows, 64), dtype=np.float32)
        return ArraySource(x, np.arange(rows) % 2)

class Net(nn.Module):
    def __init__(self, hidden: int = 4):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 2))

    def forward(self, x):
        return self.layers(x)
"""
CONFIG = """
data: {class: short.Rows, allow_overlap: true}
model: {class: short.Net}
train:
  epochs: 1
  loss: cross_entropy
  optimizer: {class: sgd, lr: 0.01}
  limit: {train: 2}
track: {tensorboard: false}
"""
STUDY = """
base: ../../runs/base/config.yaml
objective: {{metric: val_loss, mode: min}}
search: {{method: grid}}
space: {{train.optimizer.lr: {{log: [1e-4, 1e-1], points: {trials}}}}}
execute: {{on: inline}}
"""


def run(shares: bool) -> float:
    """Return the duration of one study in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, text in (
            ("src/short.py", CODE),
            ("runs/base/config.yaml", CONFIG),
            ("studies/s/study.yaml", STUDY.format(trials=TRIALS)),
        ):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        os.chdir(root)
        began = time.perf_counter()
        if shares:
            found = sweep("studies/s", progress=False)
        else:
            with mock.patch.object(SharedData, "get", return_value=None):
                found = sweep("studies/s", progress=False)
        seconds = time.perf_counter() - began
        assert len(found.points) == TRIALS
        assert all(point.state == "finished" for point in found.points)
        return seconds


def main() -> None:
    """Print the durations and their ratio."""
    os.environ["MEGABYTES"] = str(MEGABYTES)
    print(f"shared data: {TRIALS} trials of 2 steps over an array of {MEGABYTES} MB  ({where()})")
    pairs = [(run(shares=False), run(shares=True)) for _ in range(ROUNDS)]
    ratios = sorted(own / shared for own, shared in pairs)
    for own, shared in pairs:
        print(f"  each its own {own:7.1f} s   shared {shared:7.1f} s   {own / shared:5.1f} times as fast")
    print(f"  best {ratios[-1]:.1f}, spread {ratios[0]:.1f} … {ratios[-1]:.1f}")


if __name__ == "__main__":
    main()
