"""The overhead of a study per trial, for trials that train one step on 16 rows.

For comparison: Optuna in process and Ray Tune, with an objective that does the same training, without folder or log.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
import time
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
os.environ |= {"RAY_AIR_NEW_OUTPUT": "0", "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1", "RAY_DEDUP_LOGS": "0"}

import numpy as np
import torch
import torch.nn.functional as F
from timing import where
from torch import nn

from manyfit.config.study.study import load_study
from manyfit.study.executors.choose import choose
from manyfit.study.executors.inline import Inline
from manyfit.study.executors.processes import prepare
from manyfit.study.sweep import Wish, execute
from manyfit.study.work.units import Outcome

torch.set_num_threads(1)
COUNT = int(os.environ.get("COUNT", "300"))
ROUNDS = int(os.environ.get("ROUNDS", "5"))
RAY_COUNT = 20
CODE = """
import numpy as np
from torch import nn
from manyfit.data import ArraySource

X = np.linspace(0, 1, 32, dtype=np.float32).reshape(16, 2)
Y = (X.sum(1) > 1).astype(np.int64)

class Rows:
    def __init__(self, batch_size: int = 16):
        self.batch_size = batch_size

    def source(self, split):
        return ArraySource(X, Y)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(x)
"""
CONFIG = """
data: {class: tiny.Rows, allow_overlap: true}
model: {class: tiny.Net}
train: {epochs: 1, loss: cross_entropy, optimizer: {class: sgd, lr: 0.1}, device: cpu}
"""
STUDY = f"""
base: ../../runs/base/config.yaml
objective: {{metric: val_loss, mode: min}}
search: {{method: grid}}
space: {{train.optimizer.lr: {{linear: [0.001, 1.0], points: {COUNT}}}}}
"""


X = torch.from_numpy(np.linspace(0, 1, 32, dtype=np.float32).reshape(16, 2))
Y = (X.sum(1) > 1).long()


def bare(rate):
    """Do the same training manually: model, one step, one evaluation."""
    x, y = X, Y
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    order = torch.randperm(16)
    F.cross_entropy(model(x[order]), y[order]).backward()
    optimizer.step()
    with torch.no_grad():
        return F.cross_entropy(model(x), y).item()


def nothing(unit, watch, tell):
    """Return outcomes without any training or run folder: what remains is the ledger."""
    return [Outcome(trial.id, 1, 1.0, 1, True, curve=((1.0, 0.5),)) for trial in unit.trials]


class Study:
    def __init__(self):
        self.root = Path(tempfile.mkdtemp(prefix="manyfit-bench-"))
        self.count = 0
        files = {"src/tiny.py": CODE, "runs/base/config.yaml": CONFIG}
        for name, text in files.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)

    def seconds(self, make, *overrides):
        """Return the seconds of a whole study, from the first check to the leaderboard, with fixed costs."""
        self.count += 1  # a new folder each time: a file system may be slow after many files are removed
        folder = self.root / f"studies/s{self.count}"
        folder.mkdir(parents=True)
        (folder / "study.yaml").write_text(STUDY)
        study = load_study(folder, overrides)
        began = time.perf_counter()
        found = execute(study, Wish(quiet=True), make)
        took = time.perf_counter() - began
        assert not found.failures, found.failures
        return took

    def each(self, make, *overrides):
        """Return the milliseconds per additional trial, without fixed costs, for each round."""
        self.seconds(make, *overrides)
        best = []
        for _ in range(ROUNDS):
            fixed = self.seconds(make, *overrides, "search.trials=2")
            best.append((self.seconds(make, *overrides) - fixed) / (COUNT - 2) * 1e3)
        return best


def timed(act, count=COUNT):
    for i in range(10):
        act(0.1 + i / 100)
    found = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for i in range(count):
            act(0.001 + i / count)
        found.append((time.perf_counter() - began) / count * 1e3)
    return found


def write_files(folder):
    """Write and flush the files of one trial, as its run folder needs them, and nothing else."""

    def sync(place):
        descriptor = os.open(place, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    def write(names, size):
        for name in names:
            with (folder / f".{name}").open("wb") as file:
                file.write(b"x" * size)
                os.fsync(file.fileno())
            (folder / f".{name}").rename(folder / name)
        sync(folder)

    (folder / "reports").mkdir(parents=True)
    write(["config.yaml", "config.resolved.yaml", "provenance.json"], 1500)
    write(["metrics.jsonl", "state.safetensors", "manifest.json"], 700)
    sync(folder.parent)
    write(["summary.json"], 700)


def files_each():
    place = Path(tempfile.mkdtemp(prefix="manyfit-bench-"))
    found = []
    for number in range(ROUNDS):
        began = time.perf_counter()
        for i in range(COUNT):
            write_files(place / f"{number}-{i}")
        found.append((time.perf_counter() - began) / COUNT * 1e3)
    shutil.rmtree(place)
    return found


def optuna_each():
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    found = []
    for i in range(ROUNDS):
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=i))
        began = time.perf_counter()
        study.optimize(lambda trial: bare(trial.suggest_float("lr", 0.001, 1.0)), n_trials=COUNT)
        found.append((time.perf_counter() - began) / COUNT * 1e3)
    return found


def ray_each():
    import ray
    from ray import tune

    def trial(config):
        torch.set_num_threads(1)
        return {"loss": bare(config["lr"])}

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    tuner = tune.Tuner(
        tune.with_resources(trial, {"cpu": 1}),
        param_space={"lr": tune.uniform(0.001, 1.0)},
        tune_config=tune.TuneConfig(num_samples=RAY_COUNT),
        run_config=tune.RunConfig(verbose=0, storage_path=tempfile.mkdtemp()),
    )
    began = time.perf_counter()
    tuner.fit()
    took = (time.perf_counter() - began) / RAY_COUNT * 1e3
    ray.shutdown()
    return [took]


def report(name, found, own, limit=None):
    """Print the overhead: the best of several rounds, minus the time of the training itself."""
    over = min(found) - own
    good = limit is None or over <= limit
    text = f" (at most {limit} ms): {'ok' if good else 'TOO SLOW'}" if limit is not None else ""
    print(
        f"{name}: overhead {over:.2f} ms a trial{text}; {min(found):.2f} ms in all, "
        f"spread {min(found):.2f}–{max(found):.2f} over {len(found)} rounds"
    )
    return good


def main():
    print(f"{where()}, torch {torch.__version__}, {COUNT} trials of one step")
    prepare()
    study = Study()
    own = min(timed(bare))
    print(f"the training by hand: {own:.2f} ms")
    good = report(
        "inline, the ledger alone", study.each(lambda s, w, watch, n: Inline(nothing, watch)), 1e-9, 3
    )
    good &= report("inline, with its run folder", study.each(choose, "execute.on=inline"), own, 10)
    files = files_each()
    print(
        f"    its files written and flushed by hand, which depends on the disk: {min(files):.2f} ms, "
        f"spread {min(files):.2f}–{max(files):.2f}"
    )
    good &= report("processes, with its run folder", study.each(choose, "execute.on=processes"), own / 2, 15)
    if importlib.util.find_spec("optuna"):
        report("Optuna in process, without a folder", optuna_each(), own)
    if importlib.util.find_spec("ray"):
        report(f"Ray Tune ({RAY_COUNT} trials)", ray_each(), own / 2)
    shutil.rmtree(study.root, ignore_errors=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
