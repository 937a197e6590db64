"""A grid of 16 configurations on digits, 50 epochs each: a study on two warm workers against a hand-written loop.

The study has its ledger, its metrics and its checkpoints on. Lightning and Ray Tune do the same work in the same
rounds, where they are installed. The study's workers are started and have imported what they need before the clock
starts, and so is Ray; everything else a study does is timed.
"""

from __future__ import annotations

import importlib.util
import itertools
import logging
import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
os.environ |= {"RAY_AIR_NEW_OUTPUT": "0", "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1", "RAY_DEDUP_LOGS": "0"}

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from timing import compare, where
from torch import nn

from manyfit.config.study import load_study
from manyfit.study.executors.processes import Processes, places, usable_cores
from manyfit.study.sweep import Wish, execute
from manyfit.study.units import Trial, Unit

torch.set_num_threads(1)
EPOCHS, BATCH = int(os.environ.get("EPOCHS", "50")), 32
ROUNDS = int(os.environ.get("ROUNDS", "3"))
RATES, DECAYS = [1e-4, 3e-4, 1e-3, 3e-3], [0.0, 1e-4, 1e-3, 1e-2]
GRID = list(itertools.product(RATES, DECAYS))

CODE = '''
import numpy as np
from sklearn.datasets import load_digits
from torch import nn
from manyfit.data import ArraySource

class Digits:
    def __init__(self, batch_size: int = 32):
        self.batch_size = batch_size

    def source(self, split):
        if split == "test":
            return None
        digits = load_digits()
        return ArraySource((digits.data / 16).astype(np.float32), digits.target)

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
'''
CONFIG = f"""
data: {{class: digits.Digits, batch_size: {BATCH}}}
model: {{class: digits.Net}}
train:
  epochs: {EPOCHS}
  loss: cross_entropy
  metrics: [accuracy]
  optimizer: {{class: adamw, lr: 1e-3, fused: true}}
  every: {{validate: {EPOCHS}ep}}
  device: cpu
"""
STUDY = f"""
base: ../../runs/base/config.yaml
objective: {{metric: val_accuracy, mode: max}}
search: {{method: grid}}
space: {{train.optimizer.lr: {RATES}, train.optimizer.weight_decay: {DECAYS}}}
execute: {{on: processes, workers: 2}}
"""


class Study:
    """A study whose workers live from one round to the next."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="manyfit-bench-"))
        for name, text in {"src/digits.py": CODE, "runs/base/config.yaml": CONFIG, "studies/s/study.yaml": STUDY}.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)
        self.engine = None

    def run(self):
        """Prepare: a fresh folder, and workers that have trained something. Timed: the study."""
        folder = self.root / "studies/s"
        for entry in folder.iterdir():
            if entry.name != "study.yaml":
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        study = load_study(folder)
        if self.engine is not None:
            self.engine.close()
        yield
        found = execute(study, Wish(quiet=True), self.warm)
        assert len(found.ranked) == 16, found.failures
        yield

    def warm(self, study, work, watch, trials):
        return Kept(work, places(2, 1, [], None, usable_cores))


class Kept(Processes):
    """Workers of this benchmark; each is warm before the clock starts."""


def hand_written(rate, decay):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay, fused=True)
    for _ in range(EPOCHS):
        order = torch.randperm(len(X))
        for i in range(0, len(X), BATCH):
            rows = order[i : i + BATCH]
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(model(X[rows]), Y[rows]).backward()
            optimizer.step()
    with torch.no_grad():
        return (model(X).argmax(1) == Y).float().mean().item()


DIGITS = load_digits()
X, Y = torch.tensor((DIGITS.data / 16).astype(np.float32)), torch.tensor(DIGITS.target)


def serial():
    return [hand_written(*point) for point in GRID]
