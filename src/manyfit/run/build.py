"""Config → objects: data, module, loss, optimiser, schedule, and the learner that holds them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from manyfit.config import Component, Config
from manyfit.config.check import HORIZONS
from manyfit.core.errors import ComponentFailed, ManyfitError, UsageError
from manyfit.core.secrets import redact
from manyfit.core.seeds import derive
from manyfit.data import Data, Order, Source, Split
from manyfit.learn.torch import RowMetric, TorchLearner
from manyfit.run.plan import Plan


@dataclass(frozen=True)
class Built:
    """What a config describes, ready to train."""

    learner: TorchLearner
    plan: Plan
    order: Order
    data: Component
    train: Source
    validation: Source | None
    test: Source | None

    def fingerprints(self) -> dict[str, str]:
        """The content of each split."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: source.fingerprint() for name, source in splits.items() if source is not None}


def build(config: Config) -> Built:
    """Build everything. Initial weights are a function of the seed alone."""
    run = config.run
    device = device_of(run.train.device)
    seed_everything(derive(run.seed, "build"))
    data = run.data.build()
    if not isinstance(data, Data):
        raise UsageError(
            f"{run.data.origin}: data: {run.data.path} needs the attribute batch_size and source()"
        )
    train = split_of(run.data, data, "train")
    if train is None or not len(train):
        raise UsageError(f"{run.data.origin}: data: {run.data.path} has no rows to train on")
    order = Order(data.batch_size, run.seed)
    plan = Plan(order.steps(len(train)), run.train.epochs)
    learner = build_learner(config, device, plan.steps_per_epoch)
    return Built(
        learner,
        plan,
        order,
        run.data,
        train,
        split_of(run.data, data, "validation"),
        split_of(run.data, data, "test"),
    )


def build_learner(config: Config, device: torch.device, steps_per_epoch: int) -> TorchLearner:
    """Build the module and everything that trains it."""
    run, train = config.run, config.run.train
    seed_everything(derive(run.seed, "weights"))
    module = run.model.build().to(device)
    loss = train.loss.build()
    if isinstance(loss, torch.nn.Module):
        loss = loss.to(device)
    optimizer = train.optimizer.build(params=[p for p in module.parameters() if p.requires_grad])
    scheduler = None
    if train.scheduler is not None:
        scale = steps_per_epoch if train.scheduler_every == "step" else 1
        scheduler = with_horizon(train.scheduler, train.horizon, scale).build(optimizer=optimizer)
    return TorchLearner(
        module,
        loss,
        optimizer,
        scheduler,
        train.scheduler_every,
        steps_per_epoch,
        build_metrics(train.metrics),
        run.seed,
        device,
    )


def build_metrics(components: object) -> dict[str, RowMetric]:
    """Metrics by the last part of their path; one that is named twice counts twice."""
    found: dict[str, RowMetric] = {}
    for component in components if isinstance(components, list | tuple) else ():
        name = component.path.rpartition(".")[2]
        found[name if name not in found else f"{name}_{len(found)}"] = component.build()
    return found


def with_horizon(scheduler: Component, horizon: int | None, scale: int) -> Component:
    """Fill in how long a schedule lasts, if that was left to follow from the epochs."""
    missing = {
        name: (horizon or 0) * scale
        for name in HORIZONS.get(scheduler.path, ())
        if name not in scheduler.params
    }
    return dataclasses.replace(scheduler, params={**scheduler.params, **missing})


def split_of(component: Component, data: Data, split: Split) -> Source | None:
    """Ask the user's data for one split."""
    try:
        source = data.source(split)
    except ManyfitError:
        raise
    except Exception as error:
        text = redact(
            f"{component.origin}: data: {component.path}.source({split!r}) failed: "
            f"{type(error).__name__}: {error}"
        )
        raise ComponentFailed(text) from error
    if source is not None and not isinstance(source, Source):
        raise UsageError(
            f"{component.origin}: data: {component.path}.source({split!r}) must return a source, "
            f"such as manyfit.data.ArraySource, but returned a {type(source).__name__}"
        )
    return source


def device_of(name: str) -> torch.device:
    """Choose the device; `auto` takes a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(
            f"train.device: there is no device {name!r}: {str(error).splitlines()[0]}"
        ) from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"train.device: {name!r} was asked for, but there is no GPU here; write auto or cpu")
    return device


@contextmanager
def own_randomness() -> Iterator[None]:
    """Give the process its global random states back when a run is over."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


@contextmanager
def threads(count: int | None) -> Iterator[int]:
    """Use some number of threads, and say how many they are."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def seed_everything(seed: int) -> None:
    """Seed every global generator that user code may draw from while it is built."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)
    torch.manual_seed(seed)
