"""A trainer with two networks compared with a hand-written loop, and what finding the state of an object costs."""

from __future__ import annotations

import io
import json
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from fitting import fit_config
from timing import compare, where

from manyfit import load_config
from manyfit.learn.found_state.state import FoundState

torch.set_num_threads(1)
SOURCE = Path(__file__).resolve().parent
ROUNDS, EPOCHS, BATCH = 7, 40, 64
sys.path.insert(0, str(SOURCE))

import models


def trees():
    data = {"class": "models.Digits", "batch_size": BATCH}
    train = {"epochs": EPOCHS, "device": "cpu"}
    trainer = {"class": "models.Adversarial"}
    common = {"src_code_path": ".", "data": data, "export": {"metric": "train_maker"}}
    return {**common, "trainer": trainer, "train": train}


class Pair:
    """Two networks that are trained against each other."""

    def __init__(self):
        self.config = load_config(trees(), project=SOURCE)
        source = models.Digits(BATCH).source("train")
        self.inputs = torch.from_numpy(source.inputs)

    def ours(self):
        yield from fit_config(self.config)

    def hand(self):
        torch.manual_seed(0)
        made, rows, progress = models.Networks(), len(self.inputs), io.StringIO()
        with tempfile.TemporaryFile("w") as log:
            yield
            for epoch in range(EPOCHS):
                order, sums = torch.randperm(rows), {"critic": torch.zeros(()), "maker": torch.zeros(())}
                for begin in range(0, rows, BATCH):
                    real = self.inputs[order[begin : begin + BATCH]].flatten(1)
                    for name, loss in made.step(real).items():
                        sums[name] += loss.detach() * len(real)
                row = {"epoch": epoch, **{name: total.item() / rows for name, total in sums.items()}}
                log.write(json.dumps(row) + "\n")
                log.flush()
                print(f"epoch {epoch + 1}/{EPOCHS} {row}", file=progress)
            yield


class Finding:
    """The state of a trainer of a LeNet: looked for once in an epoch."""

    def __init__(self):
        torch.manual_seed(0)
        self.net = models.LeNet()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 5)
        self.pool, self.count, self.drawn = [torch.zeros(1)], 0, torch.Generator()
        source = models.Images(128).source("train")
        self.inputs, self.target = torch.from_numpy(source.inputs), torch.from_numpy(source.target)
        self.found = FoundState(self, hidden=("found", "inputs", "target"))

    def read(self):
        self.found.read()

    def epoch(self):
        for begin in range(0, len(self.inputs), 128):
            self.optimizer.zero_grad(set_to_none=True)
            part = slice(begin, begin + 128)
            F.cross_entropy(self.net(self.inputs[part]), self.target[part]).backward()
            self.optimizer.step()
            self.count += 1


def main() -> int:
    print(where(), f"torch {torch.__version__}, 1 thread")
    pair, finding = Pair(), Finding()
    name = "two networks: hand-written / manyfit"
    good = compare(name, pair.hand, pair.ours, ROUNDS, at_least=0.95, by_median=True)
    name = "finding the state / an epoch of a LeNet"
    return 0 if good & compare(name, finding.read, finding.epoch, ROUNDS, at_most=0.01) else 1


if __name__ == "__main__":
    sys.exit(main())
