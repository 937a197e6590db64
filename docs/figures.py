"""Draw the figures of the documentation into docs/assets: schedules, the rate finder, a study, a report."""

from __future__ import annotations

import math
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

import manyfit
from manyfit.schedules import ByEpoch, LogSchedule, Triangular, warmup

STEPS = 200
ASSETS = Path(__file__).with_name("assets")
EXAMPLE = Path(__file__).parents[1] / "examples" / "16_tasks"
SCHEDULES = {
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 50, 0.3),
    "multi_step": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [60, 140], 0.3),
    "exponential": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.985),
    "linear": lambda o: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.05, STEPS),
    "polynomial": lambda o: torch.optim.lr_scheduler.PolynomialLR(o, STEPS, 2.0),
    "log": lambda o: LogSchedule(o, STEPS),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, STEPS),
    "cosine_restarts": lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 30, 2),
    "one_cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 1.0, STEPS),
    "triangular": lambda o: Triangular(o, 50),
    "triangular, halving": lambda o: Triangular(o, 50, mode="halving"),
    "triangular, exponential": lambda o: Triangular(o, 50, mode="exponential", gamma=0.99),
    "triangular, cosine": lambda o: Triangular(o, 50, shape="cosine"),
    "by_epoch": lambda o: ByEpoch(o, {0: 1.0, 80: 0.4, 150: 0.1}),
    "warmup": lambda o: warmup(o, None, 40),
    "warmup, then cosine": lambda o: warmup(o, torch.optim.lr_scheduler.CosineAnnealingLR(o, STEPS - 40), 40),
}


def trace(make: object) -> list[float]:
    """Return the rate of every step."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    schedule = make(optimizer)  # type: ignore[operator]
    found = []
    for step in range(STEPS):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if step < STEPS - 1:
            schedule.step()
    return found


def draw_study(config: dict[str, Any]) -> None:
    """Draw the effects of a small search."""
    search = {
        "base": config,
        "objective": {"metric": "val_loss", "mode": "min"},
        "set": {"train.metrics": ["accuracy"]},
        "search": {"method": "random", "trials": 24},
        "space": {"train.optimizer.lr": {"log": [1e-4, 1e-1]}, "data.batch_size": [32, 64, 128]},
    }
    with tempfile.TemporaryDirectory() as place:
        study = manyfit.sweep(search, folder=f"{place}/studies/effects", progress=False)
        study.plot_effects().save(ASSETS / "effects.png")


def draw_report() -> None:
    """Draw rows of the segmentation example."""
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(EXAMPLE, f"{place}/tasks")
        run = manyfit.train(f"{place}/tasks/runs/segmentation", ["evaluate.figures=true"], callbacks=[])
        shutil.copy(run.folder / "reports" / "test.images.png", ASSETS / "report-images.png")


def main() -> None:
    """Draw all figures."""
    columns = 4
    figure = Figure(figsize=(10, 8), layout="constrained")
    axes = figure.subplots(math.ceil(len(SCHEDULES) / columns), columns, sharex=True, sharey=True)
    for place, (name, make) in zip(axes.flat, SCHEDULES.items(), strict=True):
        place.plot(trace(make))
        place.set_title(name, fontsize=9)
        place.grid(alpha=0.3)
    figure.savefig(ASSETS / "schedules.png", dpi=100)
    config = {
        "data": {"class": "digits"},
        "model": {
            "class": "torch.nn.Sequential",
            "args": [
                {"class": "torch.nn.Flatten"},
                {"class": "torch.nn.Linear", "in_features": 64, "out_features": 10},
            ],
        },
        "train": {"epochs": 1, "loss": "cross_entropy", "optimizer": {"class": "adam", "lr": 1e-3}},
    }
    manyfit.find_lr(config, seeds=3).plot().save(ASSETS / "find-lr.png")
    draw_study(config)
    draw_report()


if __name__ == "__main__":
    main()
