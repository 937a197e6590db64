"""Config → objects: data, module, loss, optimiser, schedule, and the learner that holds them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from manyfit.config import Component, Config
from manyfit.config.schema import Train
from manyfit.config.torch_facts import missing_horizon
from manyfit.core.errors import ComponentFailed, ManyfitError, Origin, UsageError
from manyfit.core.secrets import redact
from manyfit.core.seeds import derive
from manyfit.core.trace import user_frame
from manyfit.data import Data, Order, Source, Split
from manyfit.learn.torch import TorchLearner
from manyfit.run.plan import Plan

SPLITS: Final[tuple[Split, ...]] = ("train", "validation", "test")


@dataclass(frozen=True)
class Built:
    """What a config describes, ready to train."""

    learner: TorchLearner
    plan: Plan
    order: Order
    train: Source
    validation: Source | None
    test: Source | None

    def fingerprints(self) -> dict[str, str]:
        """The content of each split."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: source.fingerprint() for name, source in splits.items() if source is not None}


def build(config: Config) -> Built:
    """Build everything: first what fails quickly, then the data. Weights follow from the seed alone."""
    run = config.run
    device = device_of(run.train.device, config.origin("train.device"))
    module, loss, optimizer = build_model(config, device)
    metrics = {name: component.build() for name, _, component in run.train.named_metrics()}
    seed_everything(derive(run.seed, "data"))
    data = run.data.build()
    if not isinstance(data, Data):
        raise UsageError(
            f"{run.data.origin}: data: {run.data.path} needs the attribute batch_size and source()"
        )
    train, validation, test = (split_of(run.data, data, split) for split in SPLITS)
    if train is None or not len(train):
        raise UsageError(f"{run.data.origin}: data: {run.data.path} has no rows to train on")
    check_measured(config, validation)
    order = Order(data.batch_size, run.seed)
    steps = order.steps(len(train))
    scheduler = build_scheduler(run.train, optimizer, steps)
    learner = TorchLearner(
        module, loss, optimizer, scheduler, run.train.scheduler_every, steps, metrics, run.seed, device
    )
    return Built(learner, Plan(steps, run.train.epochs), order, train, validation, test)


def build_model(config: Config, device: torch.device) -> tuple[torch.nn.Module, Any, torch.optim.Optimizer]:
    """Build the module, the loss and the optimiser."""
    train = config.run.train
    seed_everything(derive(config.run.seed, "weights"))
    module = config.run.model.build().to(device)
    loss = train.loss.build()
    if isinstance(loss, torch.nn.Module):
        loss = loss.to(device)
    return module, loss, train.optimizer.build(params=[p for p in module.parameters() if p.requires_grad])


def build_scheduler(train: Train, optimizer: torch.optim.Optimizer, steps_per_epoch: int) -> Any:
    """Build the schedule; if its length was left out, it follows from the horizon."""
    if train.scheduler is None:
        return None
    params = dict(train.scheduler.params)
    if missing := missing_horizon(train.scheduler.path, params):
        scale = steps_per_epoch if train.scheduler_every == "step" else 1
        params[missing] = (train.horizon or train.epochs) * scale
    return dataclasses.replace(train.scheduler, params=params).build(optimizer=optimizer)


def check_measured(config: Config, validation: Source | None) -> None:
    """The choice of the best checkpoint, or a schedule, may wait for validation; then it needs rows."""
    if validation is not None and len(validation):
        return
    metric, scheduler = config.run.export.metric, config.run.train.scheduler
    asked = config.origin("export.metric")
    if asked is not None and metric.startswith("val_"):
        raise UsageError(f"{asked}: export.metric: there are no validation rows to measure {metric!r} on")
    if scheduler is not None and scheduler.path.endswith(".ReduceLROnPlateau"):
        raise UsageError(f"{scheduler.origin}: train.scheduler: there are no validation rows to wait for")


def split_of(component: Component, data: Data, split: Split) -> Source | None:
    """Ask the user's data for one split."""
    try:
        source = data.source(split)
    except ManyfitError:
        raise
    except Exception as error:
        text = redact(
            f"{component.origin}: data: {component.path}.source({split!r}) failed: "
            f"{type(error).__name__}: {error}\n  at {user_frame(error)}"
        )
        raise ComponentFailed(text) from error
    if source is not None and not isinstance(source, Source):
        raise UsageError(
            f"{component.origin}: data: {component.path}.source({split!r}) must return a source, "
            f"such as manyfit.data.ArraySource, but returned a {type(source).__name__}"
        )
    return source


def device_of(name: str, asked: Origin | None) -> torch.device:
    """Choose the device; `auto` takes a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        here = f"there are {count} GPUs here" if count else "there is no GPU here"
        raise UsageError(f"{asked}: train.device: {name!r} was asked for, but {here}; write auto or cpu")
    return device


def device_name(device: torch.device) -> str:
    """The device and the build of torch that drives it, for provenance."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return f"{device} ({name}, torch {torch.__version__})" if device.type != "cpu" else "cpu"


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
