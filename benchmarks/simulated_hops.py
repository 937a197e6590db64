"""A study of simulated trials that hop over shards, driven by the real driver and its scheduler."""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path
from typing import Any

from manyfit.config.study.study import load_study
from manyfit.study.drive.driver import Driver
from manyfit.study.executors.simulated import Simulated
from manyfit.study.sweep import Wish, execute

CODE = """
import numpy as np
from torch import nn
from manyfit.data import ArraySource


class Rows:
    def __init__(self, batch_size: int = 16):
        self.batch_size = batch_size

    def source(self, split):
        return ArraySource(np.zeros((2048, 2), np.float32), np.zeros(2048, np.int64))


class Net(nn.Module):
    def __init__(self, number: int = 0):
        super().__init__()
        self.layer = nn.Linear(2, 2)
"""
CONFIG = """
data: {{class: code.Rows, shards: {shards}}}
model: {{class: code.Net}}
train: {{epochs: {epochs}, loss: cross_entropy, optimizer: {{class: sgd, lr: 0.1}}}}
"""


def simulate(
    trials: int, shards: int, workers: int, epochs: int, seed: int = 0, hop: bool = True, **study: Any
) -> dict[str, float]:
    """Return the share of idle time, and the seconds of the driver for each unit."""
    dice = random.Random(seed)
    seconds = [dice.uniform(1, 4) for _ in range(trials)]
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        (root / "src").mkdir()
        (root / "src" / "code.py").write_text(CODE)
        (root / "runs" / "a").mkdir(parents=True)
        (root / "runs" / "a" / "config.yaml").write_text(CONFIG.format(shards=shards, epochs=epochs))
        tree: dict[str, Any] = {
            "base": str(root / "runs" / "a" / "config.yaml"),
            "objective": {"metric": "val_loss", "mode": "min"},
            "search": {"method": "grid", **study.get("search", {})},
            "space": {"model.number": list(range(trials))},
            "execute": {"hop": hop, **study.get("execute", {})},
        }
        engine = Simulated(
            workers, epochs=epochs, visits=shards if hop else 1, steps_per_epoch=shards,
            seconds=lambda trial: seconds[trial.values["model.number"]],
        )  # fmt: skip
        took: list[float] = []
        run = Driver.run

        def timed(self: Driver) -> None:
            began = time.perf_counter()
            run(self)
            took.append(time.perf_counter() - began)

        Driver.run = timed  # type: ignore[method-assign]
        try:
            execute(load_study(tree, folder=root / "studies" / "s"), Wish(quiet=True), lambda *_: engine)
        finally:
            Driver.run = run  # type: ignore[method-assign]
        idle = 1 - engine.worked / (engine.now() * workers)
        return {"idle": idle, "seconds": took[0] / engine.units, "units": engine.units}
