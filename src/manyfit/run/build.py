"""Config → objects: data, module, loss, optimiser, schedule, and the learner that holds them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from manyfit.config import Component, Config
from manyfit.core.errors import ComponentFailed, ManyfitError, Origin, UsageError
from manyfit.core.secrets import redact
from manyfit.core.seeds import derive
from manyfit.core.trace import user_frame
from manyfit.data import Data, Limited, NotASource, Order, Source, Split, as_source
from manyfit.data.randomness import seed_for
from manyfit.learn.objective import Objective
from manyfit.learn.torch import TorchLearner
from manyfit.run.evaluator import Evaluator
from manyfit.run.measure import is_whole
from manyfit.run.parts import build_loss, build_update, warm_start
from manyfit.run.plan import Plan

log = logging.getLogger("manyfit")

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
    whole: Mapping[str, Any]
    """Metrics that see a whole split."""
    evaluator: Evaluator
    """Functions of one row."""

    def fingerprints(self) -> dict[str, str]:
        """The content of each split."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: source.fingerprint() for name, source in splits.items() if source is not None}

    def split(self, name: str) -> Source | None:
        """The rows of a split, if there are any."""
        found: Source | None = {"train": self.train, "validation": self.validation, "test": self.test}[name]
        return found if found is not None and len(found) else None


def build(config: Config, *, warm: bool = False) -> Built:
    """Build everything: first what fails quickly, then the data. Weights follow from the seed alone.

    With `warm`, the model begins with the weights that `train.warm_start` names.
    """
    run = config.run
    device = device_of(run.train.device, config.origin("train.device"))
    seed_everything(derive(run.seed, "weights"))
    module = run.model.build().to(device)
    if warm and (count := warm_start(config, module)):
        log.info("began with %d tensors from %s", count, run.train.warm_start.path)  # type: ignore[union-attr]
    metrics = {name: component.build() for name, _, component in run.train.named_metrics()}
    seed_everything(derive(run.seed, "data"))
    order, sources = build_data(config)
    train, validation, test = (sources[split] for split in SPLITS)
    if train is None or not len(train):
        raise UsageError(f"{run.data.origin}: data: {run.data.path} has no rows to train on")
    check_measured(config, validation)
    seed_everything(derive(run.seed, "loss"))
    loss = build_loss(config, device, train)
    steps = order.steps(len(train))
    check_own_step(config, module)
    update = build_update(config, module, device, steps)
    averaged = None
    if run.train.ema is not None:
        rule = get_ema_multi_avg_fn(run.train.ema)  # type: ignore[no-untyped-call]
        averaged = AveragedModel(module, multi_avg_fn=rule, use_buffers=True)
    learner = TorchLearner(
        module,
        Objective(module, loss, device),
        update,
        {name: metric for name, metric in metrics.items() if not is_whole(metric)},
        run.train.accumulate,
        run.train.precision,
        averaged,
        run.seed,
    )
    whole = {name: metric for name, metric in metrics.items() if is_whole(metric)}
    functions = {name: component.build() for name, component in run.evaluate.functions.items()}
    return Built(
        learner, Plan.of(run.train, steps), order, train, validation, test, whole, Evaluator(functions)
    )


def check_own_step(config: Config, module: torch.nn.Module) -> None:
    """A model that does its own step does all of it."""
    train = config.run.train
    asked = {
        "accumulate": train.accumulate > 1,
        "clip_norm": train.clip_norm is not None,
        "clip_value": train.clip_value is not None,
        "precision": train.precision == "fp16",
    }
    for key in (key for key, is_asked in asked.items() if is_asked and hasattr(module, "train_step")):
        raise UsageError(
            f"{config.origin(f'train.{key}')}: train.{key}: {type(module).__name__} has a train_step of "
            "its own, so this has to be done there"
        )


def build_data(config: Config) -> tuple[Order, dict[str, Source | None]]:
    """The order of rows and the source of each split, within the limits that the config sets."""
    run = config.run
    data = run.data.build()
    if not isinstance(data, Data):
        raise UsageError(
            f"{run.data.origin}: data: {run.data.path} needs the attribute batch_size and source()"
        )
    if type(data.batch_size) is not int or data.batch_size < 1:
        raise UsageError(
            f"{run.data.origin}: data: the batch_size of {run.data.path} must be a whole number above 0, "
            f"but is {data.batch_size!r}"
        )
    limit = run.train.limit
    sources: dict[str, Source | None] = {split: split_of(run.data, data, split) for split in SPLITS}
    if limit.overfit is not None and sources["train"] is not None:
        first = Limited(sources["train"], limit.overfit * data.batch_size)
        sources |= {"train": first, "validation": first}
    for split in SPLITS:
        batches, source = getattr(limit, split), sources[split]
        if batches is not None and source is not None:
            sources[split] = Limited(source, batches * data.batch_size)
    return Order(data.batch_size, run.seed), sources


def check_measured(config: Config, validation: Source | None) -> None:
    """The choice of the best checkpoint, or a schedule, may wait for validation; then it needs rows."""
    if validation is not None and len(validation):
        return
    metric, schedulers = config.run.export.metric, config.run.train.schedulers()
    asked = config.origin("export.metric")
    if asked is not None and metric.startswith("val_"):
        raise UsageError(f"{asked}: export.metric: there are no validation rows to measure {metric!r} on")
    stop = config.run.train.stop
    if stop is not None and stop.metric.startswith("val_"):
        where = config.origin("train.stop.metric") or config.origin("train.stop")
        raise UsageError(
            f"{where}: train.stop.metric: there are no validation rows to measure {stop.metric!r} on"
        )
    for scheduler in schedulers.values():
        if scheduler.path.endswith(".ReduceLROnPlateau"):
            raise UsageError(f"{scheduler.origin}: train.scheduler: there are no validation rows to wait for")


def split_of(component: Component, data: Data, split: Split) -> Source | None:
    """Ask the user's data for one split."""
    try:
        return as_source(data.source(split), getattr(data, "workers", 0))
    except NotASource as error:
        raise UsageError(
            f"{component.origin}: data: {component.path}.source({split!r}) must return a source, such as "
            f"manyfit.data.ArraySource, a dataset or an iterable: {error}"
        ) from None
    except ManyfitError:
        raise
    except Exception as error:
        raise _split_failed(component, split, error) from error


def _split_failed(component: Component, split: str, error: Exception) -> ComponentFailed:
    failed = ComponentFailed(
        redact(
            f"{component.origin}: data: {component.path}.source({split!r}) failed: "
            f"{type(error).__name__}: {error}\n  at {user_frame(error)}"
        )
    )
    failed.kind = "data"
    return failed


def device_of(name: str, asked: Origin | None) -> torch.device:
    """Choose the device; `auto` takes a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cpu":
        return device
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        here = f"there are {count} GPUs here" if count else "there is no GPU here"
        raise UsageError(f"{asked}: train.device: {name!r} was asked for, but {here}; write auto or cpu")
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UsageError(f"{asked}: train.device: {name!r} cannot be used here: {reason}") from None
    return device


def device_name(device: torch.device) -> str:
    """The device and the build of torch that drives it, for provenance."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return f"{device} ({name}, torch {torch.__version__})" if device.type != "cpu" else "cpu"


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
    seed_for(seed)
    if has_accelerator():
        torch.manual_seed(seed)


@functools.cache
def has_accelerator() -> bool:
    """Whether there are further generators. Seeding those that are not there is slow, and kept for ever."""
    return torch.accelerator.is_available()
