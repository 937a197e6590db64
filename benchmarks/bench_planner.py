"""Whether `execute: {on: auto, fuse: auto}` chooses a way that is nearly as fast as the best one.

Each workload is trained in each way by `manyfit sweep`, from the start of the command to its end. The pick is right if
the way that it names takes at most 1.2 times as long as the fastest way. The time of the planned study itself, in which
ways are measured first, is printed beside it.

On a machine with a GPU, the ways are those that a plan compares there: one run at a time, in one pass, and groups of
several structures side by side. They are trained in one process, so that starting Python is not counted.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

LIMIT = 1.2
CODE = """
import numpy as np
import torch
from torch import nn
from manyfit.data import ArraySource

class Made:
    def __init__(self, batch_size: int = 32, rows: int = 2000, shape: list[int] = (64,)):
        self.batch_size, self.rows, self.shape = batch_size, rows, tuple(shape)

    def source(self, split):
        seed = {"train": 0, "validation": 1}.get(split)
        if seed is None:
            return None
        made, rows = np.random.default_rng(seed), self.rows if split == "train" else 400
        target = made.integers(0, 10, rows)
        inputs = made.standard_normal((rows, *self.shape), dtype=np.float32)
        inputs.reshape(rows, -1)[np.arange(rows), target] += 2
        return ArraySource(inputs, target)

class Mlp(nn.Module):
    def __init__(self, width: int = 64, layers: int = 1, inputs: int = 64):
        super().__init__()
        sizes = [inputs, *[width] * layers]
        hidden = [part for a, b in zip(sizes, sizes[1:]) for part in (nn.Linear(a, b), nn.ReLU())]
        self.layers = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(sizes[-1], 10))

    def forward(self, x):
        return self.layers(x)

class Conv(nn.Module):
    def __init__(self, channels: int = 6, norm: bool = False):
        super().__init__()
        between = [nn.BatchNorm2d(channels)] if norm else []
        self.layers = nn.Sequential(
            nn.Conv2d(1, channels, 5), *between, nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(channels, 16, 5), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 10))

    def forward(self, x):
        return self.layers(x)

class Recurrent(nn.Module):
    def __init__(self, width: int = 32):
        super().__init__()
        self.lstm, self.last = nn.LSTM(8, width, batch_first=True), nn.Linear(width, 10)

    def forward(self, x):
        return self.last(self.lstm(x)[0][:, -1])

class Attention(nn.Module):
    def __init__(self, width: int = 64):
        super().__init__()
        self.embed = nn.Linear(28, width)
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True)] * 1)
        self.last = nn.Linear(width, 10)

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.last(x.mean(1))
"""
WORKLOADS = {
    # name: model, data, epochs, trials of each structure, structures if there are several
    "logistic regression": ("{class: models.Mlp, layers: 0}", "rows: 2000", 10, 32),
    "small MLP, few trials": ("{class: models.Mlp}", "rows: 2000", 10, 4),
    "small MLP, short": ("{class: models.Mlp}", "rows: 1000", 2, 16),
    "small MLP, long": ("{class: models.Mlp}", "rows: 2000", 20, 32),
    "deep MLP": ("{class: models.Mlp, width: 64, layers: 6}", "rows: 2000", 10, 16),
    "wide MLP": ("{class: models.Mlp, width: 1024, layers: 2}", "rows: 2000, batch_size: 64", 4, 12),
    "small convolution": ("{class: models.Conv}", "rows: 2000, shape: [1, 28, 28]", 5, 12),
    "convolution, large batches": (
        "{class: models.Conv, norm: true}",
        "rows: 4000, shape: [1, 28, 28], batch_size: 128",
        4,
        12,
    ),
    "LSTM": ("{class: models.Recurrent}", "rows: 2000, shape: [12, 8]", 5, 12),
    "attention": ("{class: models.Attention}", "rows: 1000, shape: [28, 28]", 3, 12),
    "MLPs of eight widths": (
        "{class: models.Mlp}",
        "rows: 2000",
        20,
        1,
        "[16, 32, 48, 64, 80, 96, 112, 128]",
    ),
    "MLPs of four widths": ("{class: models.Mlp}", "rows: 2000", 10, 8, "[32, 64, 96, 128]"),
}
WAYS = {
    "serial": "{on: inline}",
    "fused": "{on: inline, fuse: 64}",
    "processes": "{on: processes}",
    "fused in processes": "{on: processes, fuse: 64}",
    "auto": "{on: auto, fuse: auto}",
}
ON_GPU = {
    "serial": "{on: inline}",
    "fused": "{on: inline, fuse: 64}",
    "side by side": "{on: inline, fuse: auto, streams: 4}",
    "auto": "{on: auto, fuse: auto}",
}


def find_way(line: str) -> str:
    """Return the way that a line of a plan names."""
    if "one run at a time" in line:
        return "serial" if "in this process" in line else "processes"
    return "fused" if "in this process" in line else "fused in processes"


def write(root: Path, workload: str, execute: str, scale: float) -> None:
    """Write the config and the study of a workload."""
    model, data, epochs, trials, *widths = WORKLOADS[workload]
    shutil.rmtree(root / "studies", ignore_errors=True)
    (root / "studies/s").mkdir(parents=True)
    (root / "runs/base").mkdir(parents=True, exist_ok=True)
    (root / "runs/base/config.yaml").write_text(
        f"seed: 7\ndata: {{class: models.Made, {data}}}\nmodel: {model}\n"
        f"train: {{epochs: {max(1, round(epochs * scale))}, loss: cross_entropy, metrics: [accuracy], "
        "optimizer: {class: adam, lr: 1e-3}}\n"
    )
    rates = [1e-4 * 100 ** (i / trials) for i in range(trials)]
    (root / "studies/s/study.yaml").write_text(
        "base: ../../runs/base/config.yaml\nobjective: {metric: val_loss, mode: min}\nsearch: {method: grid}\n"
        f"space: {{train.optimizer.lr: {rates}{f', model.width: {widths[0]}' if widths else ''}}}\n"
        f"execute: {execute}\n"
    )


def measure_here(root: Path, workload: str, way: str, scale: float) -> tuple[float, str]:
    """Run a study in this process; return its seconds, and the way that it chose, as `execute` is written."""
    import manyfit
    from manyfit.study.status import status

    write(root, workload, ON_GPU.get(way, way), scale)
    began = time.perf_counter()
    found = manyfit.sweep(root / "studies/s", progress=False)
    took = time.perf_counter() - began
    assert not found.failures, found.failures
    if way == "auto":
        planned = status(root / "studies/s")["execution"]
        for each in planned["ways"][:5]:
            print(f"    {each}")
        best = planned["ways"][0]
        if best["streams"] > 1:
            way = f"{{on: inline, fuse: {max(2, best['fuse'])}, streams: {best['streams']}}}"
        else:
            is_whole = best["fuse"] >= WORKLOADS[workload][3]
            way = (
                "serial"
                if best["fuse"] == 1
                else "fused"
                if is_whole
                else f"{{on: inline, fuse: {best['fuse']}}}"
            )
    return took, way


def measure(root: Path, workload: str, way: str, scale: float) -> tuple[float, str]:
    """Run a study; return its seconds, from the start of the command to its end, and the way that it chose."""
    write(root, workload, WAYS[way], scale)
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "manyfit", "sweep", "studies/s"], cwd=root, capture_output=True, text=True
    )
    took = time.perf_counter() - began
    assert done.returncode == 0, done.stderr[-2000:]
    if way == "auto":
        lines = done.stderr.splitlines()
        begin = next((i for i, line in enumerate(lines) if line.startswith("planned")), None)
        assert begin is not None, "no plan was printed"
        print(*(f"    {line}" for line in lines[begin : begin + 7]), sep="\n")
        way = find_way(lines[begin + 1])
    return took, way


def main() -> int:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--workloads", default=",".join(range_names()))
    arguments.add_argument("--repeats", type=int, default=1)
    arguments.add_argument("--scale", type=float, default=1.0, help="of the epochs")
    given = arguments.parse_args()
    has_gpu = torch.cuda.is_available()
    ways, run = (ON_GPU, measure_here) if has_gpu else (WAYS, measure)
    right, names = 0, [list(WORKLOADS)[int(number)] for number in given.workloads.split(",")]
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        (root / "src").mkdir()
        (root / "src/models.py").write_text(CODE)
        if has_gpu:
            measure_here(root, names[0], "fused", 0.2)  # what is imported and started once
        for name in names:
            own = {way for way in ways if way != "side by side" or len(WORKLOADS[name]) > 4}
            found = {
                way: min(run(root, name, way, given.scale) for _ in range(given.repeats))
                for way in ways
                if way in own
            }
            took = {way: seconds for way, (seconds, _) in found.items()}
            planned, pick = found["auto"]
            if pick not in took:  # a group of another size
                took[pick] = min(run(root, name, pick, given.scale)[0] for _ in range(given.repeats))
            best = min(seconds for way, seconds in took.items() if way != "auto")
            right += took[pick] <= LIMIT * best
            shown = ", ".join(f"{way} {seconds:.1f}" for way, seconds in took.items())
            print(
                f"{name}: {shown} s; {pick} / best = {took[pick] / best:.2f}, "
                f"auto / best = {planned / best:.2f}",
                flush=True,
            )
    where = torch.cuda.get_device_name() if has_gpu else f"{os.cpu_count()} cores"
    print(f"{right} of {len(names)} picks are within {LIMIT} of the best way ({where})")
    return 0


def range_names() -> list[str]:
    """Return the numbers of all workloads."""
    return [str(number) for number in range(len(WORKLOADS))]


if __name__ == "__main__":
    sys.exit(main())
