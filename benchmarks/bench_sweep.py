"""A grid of 16 configs on digits, 50 epochs each: a study on two warm workers compared with a hand-written loop.

The study writes its ledger, metrics and checkpoints, and ends with the export of its best model. If they are installed,
Lightning and Ray Tune do the same work once, in the same run. The workers of the study are started, with all imports
done, before the clock starts; everything else is timed.
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
from timing import compare, seconds, where
from torch import nn

from manyfit.config.study.study import load_study
from manyfit.study.executors.processes import Processes, places, usable_cores
from manyfit.study.sweep import Wish, execute, write_base
from manyfit.study.work.folder import StudyFolder
from manyfit.study.work.training import Training
from manyfit.study.work.units import Trial, Unit

torch.set_num_threads(1)
EPOCHS, BATCH = int(os.environ.get("EPOCHS", "50")), 32
ROUNDS = int(os.environ.get("ROUNDS", "3"))
RATES, DECAYS = [1e-4, 3e-4, 1e-3, 3e-3], [0.0, 1e-4, 1e-3, 1e-2]
GRID = list(itertools.product(RATES, DECAYS))

CODE = """
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
"""
CONFIG = f"""
data: {{class: digits.Digits, batch_size: {BATCH}, allow_overlap: true}}
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
    """A study on workers that are started, with all imports done, before the clock starts."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="manyfit-bench-"))
        files = {"src/digits.py": CODE, "runs/base/config.yaml": CONFIG, "studies/s/study.yaml": STUDY}
        for name, text in files.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)

    def clear(self) -> None:
        """Remove what an earlier run of the study has left."""
        for entry in (self.root / "studies/s").iterdir():
            if entry.name != "study.yaml":
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def run(self):
        self.clear()
        folder = self.root / "studies/s"
        study = load_study(folder)
        base = str(write_base(study, StudyFolder(folder)))
        work = Training(base, study.objective.metric, fuse=study.execute.fuse)
        workers = Processes(work, places(2, 1, [], None, usable_cores))
        for i in range(2):
            workers.submit(Unit((Trial(f"warm-{i}", str(folder / "warm"), {}, 0),), purpose="rehearse"))
        warm = 0
        while warm < 2:
            warm += len(workers.wait())
        yield
        found = execute(study, Wish(quiet=True), lambda *_: workers)
        yield
        assert len(found.ranked) == 16, found.failures


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


def lightning_serial():
    import lightning.pytorch as pl
    from torch.utils.data import DataLoader, TensorDataset

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Model(pl.LightningModule):
        def __init__(self, rate, decay):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
            self.rate, self.decay = rate, decay

        def training_step(self, batch, index):
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=self.rate, weight_decay=self.decay)

    for point in GRID:
        loader = DataLoader(TensorDataset(X, Y), batch_size=BATCH, shuffle=True)
        trainer = pl.Trainer(max_epochs=EPOCHS, accelerator="cpu", logger=False, enable_checkpointing=False,
                             enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
        trainer.fit(Model(*point), loader)


def ray_tune():
    import ray
    from ray import tune

    def trial(config):
        torch.set_num_threads(1)
        return {"accuracy": hand_written(*GRID[config["i"]])}

    if not ray.is_initialized():
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    tuner = tune.Tuner(
        tune.with_resources(trial, {"cpu": 1}),
        param_space={"i": tune.grid_search(list(range(len(GRID))))},
        run_config=tune.RunConfig(verbose=0, storage_path=tempfile.mkdtemp()),
    )
    assert len(tuner.fit()) == 16


def main() -> int:
    print(f"{where()}, torch {torch.__version__}, {EPOCHS} epochs, 16 configurations")
    study = Study()
    beside = {}
    if importlib.util.find_spec("lightning"):
        beside["against Lightning, one after another"] = lightning_serial
    if importlib.util.find_spec("ray"):
        beside["against Ray Tune, two at a time"] = ray_tune
    # The hand-written loop is the numerator: the ratio is how many times faster the study is.
    name = "hand-written loop / study on two workers"
    good = compare(name, serial, study.run, ROUNDS, at_least=1.6)
    for other, side in beside.items():
        took, own = min(seconds(side) for _ in range(1)), seconds(study.run)
        print(f"    {other}: the study is {took / own:.2f} times faster")
    shutil.rmtree(study.root, ignore_errors=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
