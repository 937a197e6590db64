"""The learning rate finder: a logarithmic sweep on a copy of a run. Nothing is written to its folder."""

from __future__ import annotations

import csv
import io
import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyfit.config import load_config
from manyfit.config.schema.consistency import find_overridden_rates
from manyfit.config.schema.run import Group, Train
from manyfit.config.tree.overrides import Overrides
from manyfit.config.tree.reader import dump
from manyfit.core.errors import FolderError, UsageError
from manyfit.core.lazy import call_later
from manyfit.core.names import listing
from manyfit.data import once
from manyfit.data.randomness import own_randomness
from manyfit.learn.metrics_by_run import split_by_run
from manyfit.learn.rate_sweep import RatePoint, choose_rate, smooth_losses, sweep_rates
from manyfit.learn.split_metrics import SplitMetrics
from manyfit.run.build.builder import Built, build
from manyfit.run.build.modes import compute_as
from manyfit.store import durable
from manyfit.store.folder import RunFolder

log = logging.getLogger("manyfit")


@dataclass(frozen=True)
class FoundRate:
    """The result of a sweep: the suggested rate, and what was measured with each seed."""

    rate: float
    how: str
    optimizer: str
    """The name of the optimizer; empty if there is only one."""
    sweeps: Mapping[int, Sequence[RatePoint]]
    """The measurements by seed."""

    @property
    def key(self) -> str:
        """The config key of the rate."""
        return f"train.optimizer.{self.optimizer}.lr" if self.optimizer else "train.optimizer.lr"

    def plot(self) -> Any:
        """Draw the losses over the rates; a notebook shows the figure."""
        return call_later("manyfit.report.rates.plot_rates", self)

    def to_csv(self) -> str:
        """Return the measurements as CSV."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        names = sorted({name for points in self.sweeps.values() for p in points for name in p.metrics})
        writer.writerow(["seed", "rate", "loss", "smoothed", *names])
        for seed, points in self.sweeps.items():
            smoothed = smooth_losses([point.loss for point in points])
            for point, smooth in zip(points, smoothed, strict=True):
                cells = [point.metrics.get(name, "") for name in names]
                writer.writerow([seed, repr(point.rate), repr(point.loss), repr(smooth), *cells])
        return stream.getvalue()


def find_lr(
    source: str | Path | Mapping[str, Any],
    overrides: Overrides = (),
    *,
    low: float = 1e-6,
    high: float = 1.0,
    steps: int = 100,
    seeds: int = 1,
    choose: str = "steepest",
    higher: bool = False,
    optimizer: str = "",
    checkpoint: str | None = None,
) -> FoundRate:
    """Sweep the learning rate of a run from `low` to `high`, one step at each rate, and suggest one.

    `choose` is `steepest`, `minimum`, or a validation metric: the lower the better, unless `higher`.
    The sweep starts from the initial weights, or from a `checkpoint`, and repeats with several seeds.

    >>> manyfit.find_lr("runs/digits-mlp").rate    # doctest: +SKIP
    """
    if checkpoint is not None and isinstance(source, Mapping):
        raise UsageError("a checkpoint needs the folder of a run, not a config in Python")
    if not 0 < low < high < math.inf or steps < 10 or seeds < 1:
        raise UsageError("rates must satisfy 0 < low < high, with at least 10 steps and 1 seed")
    rates = [low * (high / low) ** (i / (steps - 1)) for i in range(steps)]
    base = load_config(source, overrides)
    sweeps: dict[int, list[RatePoint]] = {}
    for seed in range(base.run.seed, base.run.seed + seeds):
        log.info("sweeping with seed %d", seed)
        config = load_config(source, [*overrides, f"seed={seed}"]) if seed != base.run.seed else base
        with own_randomness(), compute_as(config.run.train):
            built = build(config, warm=True)
            if checkpoint is not None and not isinstance(source, Mapping):
                folder = Path(source) if Path(source).is_dir() else Path(source).parent
                built.learner.load([RunFolder(folder).checkpoint(checkpoint).load()])
            sweeps[seed] = _sweep(built, rates, optimizer, choose)
    picked = sorted(math.log(choose_rate(points, choose, higher)) for points in sweeps.values())
    middle = (picked[(len(picked) - 1) // 2] + picked[len(picked) // 2]) / 2
    return FoundRate(math.exp(middle), choose, optimizer, sweeps)


def _sweep(built: Built, rates: Sequence[float], optimizer: str, choose: str) -> list[RatePoint]:
    learner = built.learner
    is_metric = choose not in ("steepest", "minimum")
    if is_metric and not choose.startswith("val_"):
        raise UsageError(f"choose is steepest, minimum or a metric such as val_loss, not {choose!r}")
    if learner.grain != 1 or learner.reads_data:
        raise UsageError("the model trains whole epochs itself, so its rate cannot change with each step")
    batches = built.train.batches(built.order, learner.step)

    def measure() -> dict[str, float]:
        validation = built.split("validation")
        if validation is None:
            raise UsageError(f"there are no validation rows to measure {choose!r} on")
        further = [SplitMetrics(built.whole)]
        (found,) = split_by_run(learner.measure(once(validation, built.evaluation_batch_size), further), 1)
        values = {f"val_{name}": float(value) for name, value in {**found, **further[0].values()}.items()}
        if choose not in values:
            raise UsageError(f"no metric {choose!r} is measured; there are {listing(list(values))}")
        return values

    every = max(1, len(rates) // 20)
    return sweep_rates(learner, iter(batches), rates, optimizer, measure if is_metric else None, every)


def check_variant(place: Path, optimizer: str = "") -> Train:
    """Raise an error if a rate that is found could not be written to a config that extends this run."""
    folder = place if place.is_dir() else place.parent
    if not (folder / "config.yaml").is_file():
        raise FolderError(f"{folder} has no config.yaml to extend")
    train = load_config(folder).run.train
    if optimizer not in train.optimizers():
        raise UsageError("the optimizer is not part of the config, so its rate is set in your code")
    key = f"train.optimizer.{optimizer}.lr" if optimizer else "train.optimizer.lr"
    for text in find_overridden_rates(train, [key]):
        raise UsageError(text)
    if any("lr" in group.options for group in train.groups):
        before = train.optimizers()[optimizer].params.get("lr")
        if not isinstance(before, int | float):
            raise UsageError("train.groups sets rates, but train.optimizer none to scale them by")
    return train


def write_variant(place: Path, found: FoundRate) -> Path:
    """Write a run that extends another one with the rate that was found; return its folder.

    The rates of parameter groups are scaled with it.
    """
    train, place = check_variant(place, found.optimizer), place if place.is_dir() else place.parent
    names = (f"{place.name}-lr" + (f"-{i}" if i > 1 else "") for i in itertools.count(1))
    folder = next(path for name in names if not (path := place.with_name(name)).exists())
    component, rate = train.optimizers()[found.optimizer], float(f"{found.rate:.3g}")
    chosen: dict[str, Any] = {"class": component.written, "lr": rate}
    changed: dict[str, Any] = {"optimizer": {found.optimizer: chosen} if found.optimizer else chosen}
    if any("lr" in group.options for group in train.groups):
        scale = rate / component.params["lr"]
        changed["groups"] = [_scale_group(group, scale) for group in train.groups]
    folder.mkdir()
    tree = {"extend": f"../{place.name}/config.yaml", "train": changed}
    durable.write_file(folder / "config.yaml", dump(tree))
    return folder


def _scale_group(group: Group, scale: float) -> dict[str, Any]:
    options = {key: value * scale if key == "lr" else value for key, value in group.options.items()}
    owner = {"optimizer": group.optimizer} if group.optimizer is not None else {}
    return {"match": group.match, **owner, "options": options}
