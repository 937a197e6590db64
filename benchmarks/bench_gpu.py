"""Studies and single runs on a GPU compared with bare loops: 60,000 rows of 28 x 28 numbers, batches of 32.

Each study is timed from the call of `manyfit.sweep` to the finished ledger; its speed is also read from its logs, from
the end of the first epoch to that of the last one. It validates, logs and writes checkpoints as usual.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch

import manyfit

ROWS, HELD_OUT, BATCH = 60_000, 10_000, 32
CODE = """
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
"""
MODELS = {"mlp": "Mlp", "lenet": "LeNet", "transformer": "Transformer"}
STUDY = """
base: ../../runs/base/config.yaml
objective: {{metric: val_loss, mode: min}}
search: {{method: grid{seeds}}}
space: {{train.optimizer.lr: {rates}}}
execute: {{on: inline, fuse: {trials}}}
"""
CONFIG = """
seed: 7
data: {{class: images.Images, batch_size: 32, rows: {rows}}}
model: {{class: images.{model}}}
train: {{epochs: {epochs}, loss: cross_entropy, metrics: [accuracy], optimizer: {{class: adam, lr: 1e-3}}, {train}}}
{more}
"""


class Project:
    """A project with one base config and one study."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="manyfit-bench-"))
        (self.root / "src").mkdir()
        (self.root / "src/images.py").write_text(CODE)

    def write(
        self, model: str, epochs: int, trials: int, train: str, seeds: bool, rows: int, more: str
    ) -> Path:
        """Write the config and the study; return the folder of the study."""
        rates = [1e-4 * 100 ** (i / max(1, trials - 1)) for i in range(1 if seeds else trials)]
        config = self.root / "runs/base/config.yaml"
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(
            CONFIG.format(rows=rows, model=MODELS[model], epochs=epochs, train=train, more=more)
        )
        folder = self.root / "studies/s"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        text = STUDY.format(rates=rates, trials=trials, seeds=f", seeds: {trials}" if seeds else "")
        (folder / "study.yaml").write_text(text)
        return folder

    def study(self, model: str, trials: int = 64, epochs: int = 3, train: str = "", seeds: bool = False,
              rows: int = ROWS, more: str = "") -> tuple[float, float]:  # fmt: skip
        """Run a study; return its samples per second between epochs, and its seconds."""
        folder = self.write(model, epochs, trials, train, seeds, rows, more)
        began = time.perf_counter()
        found = manyfit.sweep(folder, progress=False)
        took = time.perf_counter() - began
        assert len(found.ranked) in (1, trials), found.failures
        logs = list(folder.glob("trials/*/metrics.jsonl"))
        assert len(logs) == trials
        return read_speed(logs[0], rows) * trials, took

    def run(self, model: str, epochs: int = 3, train: str = "", rows: int = ROWS,
            more: str = "") -> tuple[float, float]:  # fmt: skip
        """Train one run; return its samples per second between epochs, and its seconds."""
        self.write(model, epochs, 1, train, False, rows, more)
        config = self.root / "runs/base/config.yaml"
        for entry in config.parent.iterdir():
            if entry != config:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        began = time.perf_counter()
        manyfit.train(config, callbacks=[])
        took = time.perf_counter() - began
        return read_speed(config.parent / "metrics.jsonl", rows), took


def read_speed(file: Path, rows: int) -> float:
    """Return samples per second of the fastest epoch but the first."""
    times = [json.loads(line)["time"] for line in file.read_text().splitlines()]
    return rows / min(b - a for a, b in itertools.pairwise(times))


def main() -> int:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--models", default=",".join(MODELS))
    arguments.add_argument("--modes", default="off,default")
    arguments.add_argument("--epochs", type=int, default=4)
    arguments.add_argument("--trials", type=int, default=64)
    arguments.add_argument("--single", action="store_true")
    arguments.add_argument("--seeds", action="store_true")
    arguments.add_argument("--more", default="evaluate: {batch_size: 1000}")
    given = arguments.parse_args()
    project = Project()
    print(
        f"torch {torch.__version__}, {torch.cuda.get_device_name() if torch.cuda.is_available() else 'CPU'}"
    )
    for model in given.models.split(","):
        for mode in given.modes.split(","):
            train = "capture: off" if mode == "eager" else f"compile: {mode}"
            speed, took = project.study(model, given.trials, given.epochs, train, more=given.more)
            print(
                f"{model} x{given.trials}, compile {mode}: {speed:,.0f} samples/s; study {took:.1f} s",
                flush=True,
            )
            if given.seeds:
                speed, took = project.study(
                    model, given.trials, given.epochs, train, seeds=True, more=given.more
                )
                print(f"    different seeds: {speed:,.0f} samples/s; study {took:.1f} s", flush=True)
            if given.single:
                speed, took = project.run(model, given.epochs, train, more=given.more)
                print(f"    one run: {speed:,.0f} samples/s; {took:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
