"""Config → objects: data, module, loss, optimiser, schedule, and the learner that holds them."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from manyfit.config import Component, Config
from manyfit.config.component import blamed
from manyfit.config.consistency import RESERVED
from manyfit.config.schema import Train
from manyfit.config.variants import is_variant
from manyfit.core.errors import ComponentFailed, ManyfitError, Origin, UsageError
from manyfit.core.gpus import PINNED
from manyfit.core.secrets import redact
from manyfit.core.seeds import derive
from manyfit.core.trace import user_frame
from manyfit.data import (
    ClassWeighted,
    Data,
    IterableSource,
    Limited,
    NotASource,
    Order,
    Source,
    Split,
    as_source,
    once,
    steps_of,
)
from manyfit.data.randomness import seed_for
from manyfit.learn.estimator.learner import EstimatorLearner
from manyfit.learn.keras.learner import KerasLearner
from manyfit.learn.models import Compiled, Made, make_model
from manyfit.learn.torch.build import build_loss, build_update, warm_start, warm_start_keras
from manyfit.learn.torch.learner import TorchLearner, own_optimizers
from manyfit.learn.torch.objective import Objective
from manyfit.run.evaluator import Evaluator
from manyfit.run.measure import is_whole
from manyfit.run.plan import Plan

log = logging.getLogger("manyfit")

AnyLearner: TypeAlias = TorchLearner | KerasLearner | EstimatorLearner
SPLITS: Final[tuple[Split, ...]] = ("train", "validation", "test")


@dataclass(frozen=True)
class Built:
    """What a config describes, ready to train."""

    learner: AnyLearner
    plan: Plan
    order: Order
    train: Source
    validation: Source | None
    test: Source | None
    whole: Mapping[str, Any]
    """Metrics that see a whole split."""
    evaluator: Evaluator
    """Functions of one row."""
    settings: Any = None
    """The config as components were given it, which knows what they have read."""

    def fingerprints(self) -> dict[str, str]:
        """The content of each split."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: source.fingerprint() for name, source in splits.items() if source is not None}

    def split(self, name: str) -> Source | None:
        """The rows of a split, if there are any."""
        found: Source | None = {"train": self.train, "validation": self.validation, "test": self.test}[name]
        return found if found is not None and len(found) else None

    @property
    def module(self) -> TorchLearner:
        """The learner, where only a module of PyTorch will do."""
        if not isinstance(self.learner, TorchLearner):
            raise UsageError(f"this needs a torch.nn.Module, not {self.learner.describe()}")
        return self.learner


def build(config: Config, *, warm: bool = False) -> Built:
    """Build everything: first what fails quickly, then the data. Weights follow from the seed alone.

    With `warm`, the model begins with the weights that `train.warm_start` names.
    """
    run = config.run
    device = device_of(run.train.device, config.origin("train.device"))
    made = seeded_model(config)
    if not (made.is_keras or made.is_estimator):
        check_gpu(device)
        made.model.to(device)
        if warm and (count := warm_start(config, made.model)):
            log.info("began with %d tensors from %s", count, run.train.warm_start.path)  # type: ignore[union-attr]
    if made.callbacks and not made.is_keras:
        raise UsageError(
            f"{run.model.origin}: {made.builder}.get_callbacks gives callbacks, but only Keras models take "
            f"them, not a {type(made.model).__name__}; use train.stop for early stopping"
        )
    metrics = {name: component.build() for name, _, component in run.train.named_metrics()}
    seed_everything(derive(run.seed, "data"))
    order, sources = build_data(config)
    train, validation, test = (sources[split] for split in SPLITS)
    if train is None or not len(train):
        raise UsageError(f"{run.data.origin}: data: {run.data.path} has no rows to train on")
    if made.class_weight:
        train = ClassWeighted(train, made.class_weight)
    check_measured(config, validation)
    seed_everything(derive(run.seed, "loss"))
    learner: AnyLearner
    if made.is_keras or made.is_estimator:
        check_unused(config, "a compiled model of Keras" if made.is_keras else "an estimator", made.is_keras)
    if made.is_estimator:
        learner = EstimatorLearner(made.model, train, order.batch_size, run.seed)
        plan = Plan.of(dataclasses.replace(run.train, epochs=1), 1)
    else:
        plan = Plan.of(run.train, steps_of(train, order))
        if made.is_keras:
            first: Source = validation if validation is not None and len(validation) else train
            learner = KerasLearner(
                made.model,
                plan.steps_per_epoch,
                lambda: next(once(first, order.batch_size)),
                made.callbacks,
                plan.epochs,
                run.seed,
                unused=run.data.beside.get("unused", ()),
                fed_by=fed_by(config),
            )
            if warm and (count := warm_start_keras(config, learner.model.variables)):
                log.info("began with %d variables from %s", count, run.train.warm_start.path)  # type: ignore[union-attr]
        else:
            learner = torch_learner(config, made, device, train, plan.steps_per_epoch, metrics)
    whole = {name: metric for name, metric in metrics.items() if is_whole(metric)}
    tell(config, made, device, learner, plan, {"train": train, "validation": validation, "test": test})
    return Built(
        learner,
        plan,
        order,
        train,
        validation,
        test,
        whole,
        build_evaluator(config),
        run.data.params.get("settings"),
    )


def tell(
    config: Config,
    made: Made,
    device: torch.device,
    learner: AnyLearner,
    plan: Plan,
    sources: Mapping[str, Source | None],
) -> None:
    """Log what was built, and what was decided on the way."""
    if not log.isEnabledFor(logging.DEBUG):
        return
    log.debug("model: %s from %s", type(made.model).__name__, config.run.model.origin)
    if isinstance(learner, TorchLearner):
        parameters = list(learner.module.parameters())
        trained = sum(p.numel() for p in parameters if p.requires_grad)
        log.debug("%d parameters, %d of them trained", sum(p.numel() for p in parameters), trained)
        log.debug("on %s, in %s", device, config.run.train.precision)
        for kind, found in (
            ("optimizer", learner.update.optimizers),
            ("schedule", learner.update.schedulers),
        ):
            for name, each in found.items():
                log.debug("%s %s: %s", kind, name or "(the only one)", type(each).__name__)
    for split, source in sources.items():
        count = "none" if source is None else f"{type(source).__name__} of {len(source):,} rows"
        log.debug("data, %s: %s", split, count)
    log.debug("%d epochs of %d steps", plan.epochs, plan.steps_per_epoch)


def without_callbacks(built: Built) -> Built:
    """The same without the callbacks of a Keras model, which may write files."""
    if not isinstance(built.learner, KerasLearner):
        return built
    return dataclasses.replace(built, learner=dataclasses.replace(built.learner, callbacks=()))


def seeded_model(config: Config) -> Made:
    """The model, with weights that follow from the seed: also if something was imported while it was made.

    What is imported may draw random numbers, and it is imported only once in a process.
    """
    for _ in range(2):
        before = len(sys.modules)
        seed_everything(derive(config.run.seed, "weights"))
        made = make_model(config.run.model)
        if len(sys.modules) == before:
            break
    return made


def torch_learner(
    config: Config,
    made: Made,
    device: torch.device,
    train: Source,
    steps: int,
    metrics: Mapping[str, Any],
) -> TorchLearner:
    """The learner of a module: with the loss and the optimiser of the config, or with its own."""
    run, module = config.run, made.model
    check_own_step(config, module)
    compiled = made.compiled or Compiled(module, optimizer=_own_optimizer(config, module))
    loss = build_loss(config, device, train) if run.train.loss is not None else compiled.loss
    if compiled.optimizer is not None and run.train.optimizer is not None:
        where = config.origin("train.optimizer")
        raise UsageError(f"{where}: train.optimizer: the model brings an optimizer already")
    update = build_update(config, module, device, steps, compiled.optimizer)
    is_moved = update.optimizers or hasattr(module, "train_step") or own_optimizers(module)
    if made.builder and not is_moved:
        raise UsageError(
            f"{run.model.origin}: nothing trains the module of {made.builder}: set train.optimizer and "
            "train.loss, or return manyfit.pipeline.Compiled(module, loss, optimizer)"
        )
    averaged = None
    if run.train.ema is not None:
        rule = get_ema_multi_avg_fn(run.train.ema)  # type: ignore[no-untyped-call]
        averaged = AveragedModel(module, multi_avg_fn=rule, use_buffers=True)
    return TorchLearner(
        module,
        Objective(
            module,
            loss,
            device,
            run.data.beside.get("unused", ()),
            fed_by(config),
            key_of(config, "unused"),
        ),
        update,
        {**compiled.metrics, **{name: metric for name, metric in metrics.items() if not is_whole(metric)}},
        run.train.accumulate,
        run.train.precision,
        averaged,
        run.seed,
    )


def fed_by(config: Config) -> str:
    """Who feeds the model, in the words of the user's file."""
    data = config.run.data
    if is_variant(config.tree):
        return f"{data.origin}: train.train_feeder"
    made = data.params.get("preprocessor")
    name = f"{made.__module__}.{made.__qualname__}" if isinstance(made, type) else f"data: {data.path}"
    return f"{data.origin}: {name}"


def key_of(config: Config, name: str) -> str:
    """Where a key that stands beside a data set stands in the user's file."""
    if config.meaning is config.tree:
        return f"data.{name}"
    return f"train.{name}" if is_variant(config.tree) else name


def _own_optimizer(config: Config, module: torch.nn.Module) -> Any:
    """What a module wants to be trained by, if it says so and the config does not."""
    own = getattr(module, "configure_optimizers", None)
    if own is None or config.run.train.optimizer is not None or hasattr(module, "train_step"):
        return None
    found = own()
    if not isinstance(found, torch.optim.Optimizer):
        name = f"{type(module).__name__}.configure_optimizers"
        raise UsageError(f"{config.run.model.origin}: {name} must return an optimizer, not {found!r:.60}")
    return found


def build_evaluator(config: Config) -> Evaluator:
    """Functions of one row: those of the config, and those of an evaluator."""
    given = config.run.evaluate
    functions = {name: component.build() for name, component in given.functions.items()}
    if given.evaluator is None:
        return Evaluator(functions)
    made = given.evaluator.build()
    points = made.get_eval_funcs()
    name = f"{given.evaluator.origin}: {type(made).__name__}.get_eval_funcs"
    if not isinstance(points, Mapping):
        raise UsageError(
            f"{name} must return a mapping from names to functions, not a {type(points).__name__}"
        )
    for key in points:
        if key in RESERVED or key in functions:
            raise UsageError(f"{name}: a report has a column named {key!r} already; choose another name")
    return Evaluator(functions, points)


UNUSED: Final = (
    "loss", "optimizer", "groups", "freeze", "fine_tune", "scheduler", "accumulate", "clip_norm",
    "clip_value", "precision", "ema", "class_weights", "warm_start", "metrics", "device",
)  # fmt: skip
"""Keys of `train` that only say how a module of PyTorch is trained."""


def check_unused(config: Config, what: str, takes_weights: bool = False) -> None:
    """A model that brings its own training cannot be told how to train; but perhaps how to begin."""
    for key in UNUSED:
        if key == "warm_start" and takes_weights:
            continue
        given, default = getattr(config.run.train, key), getattr(Train, key, None)
        if given != default and given not in ((), {}, None):
            raise UsageError(f"{config.origin(f'train.{key}')}: train.{key}: {what} decides this itself")


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
    if run.train.steps is not None:
        set_steps(config, sources["train"], run.train.steps * data.batch_size)
    if limit.overfit is not None and sources["train"] is not None:
        first = Limited(sources["train"], limit.overfit * data.batch_size, run.seed)
        sources |= {"train": first, "validation": first}
    for split in SPLITS:
        batches, source = getattr(limit, split), sources[split]
        if batches is not None and source is not None:
            sources[split] = Limited(source, batches * data.batch_size, run.seed)
    return Order(data.batch_size, run.seed), sources


def set_steps(config: Config, source: Source | None, rows: int) -> None:
    """Say how many rows of a stream make an epoch."""
    if not (isinstance(source, IterableSource) and source.is_stream):
        raise UsageError(
            f"{config.origin('train.steps')}: train.steps: the data has a length, and an epoch is all of it; "
            "to train on less, set train.limit.train"
        )
    source.count = rows


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
    return blamed(failed, error)


def check_gpu(device: torch.device) -> None:
    """Whoever asks for a GPU does not get the CPU."""
    asked = os.environ.get(PINNED)
    if asked and device.type == "cpu" and not torch.cuda.is_available():
        built = torch.version.cuda
        reason = f"it was built for CUDA {built}, but finds no GPU" if built else "it was built without CUDA"
        raise UsageError(f"--gpu {asked}: torch cannot use a GPU here: {reason}")


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


def device_name(learner: AnyLearner) -> str:
    """The device and what drives it, for provenance."""
    device = learner.device
    if isinstance(learner, KerasLearner) and learner.backend == "tensorflow":
        found = sys.modules["tensorflow"].config.get_visible_devices("GPU")
        return f"{len(found)} GPUs (tensorflow)" if found else "cpu"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return f"{device} ({name}, torch {torch.__version__})" if device.type != "cpu" else "cpu"


@contextmanager
def threads(count: int | None) -> Iterator[int]:
    """Use some number of threads, and say how many they are."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    if count is not None:
        tensorflow_threads(count)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def tensorflow_threads(count: int) -> None:
    """Let TensorFlow use some number of threads, whether it is imported already or will be later."""
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
        os.environ[name] = str(count)
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        return
    threading = tensorflow.config.threading
    if threading.get_intra_op_parallelism_threads() == count:
        return
    try:
        threading.set_intra_op_parallelism_threads(count)
        threading.set_inter_op_parallelism_threads(count)
    except RuntimeError:
        log.info("TensorFlow has started in this process already: the number of its threads stays")


def seed_everything(seed: int) -> None:
    """Seed every global generator that user code may draw from while it is built."""
    seed_for(seed)
    if has_accelerator():
        torch.manual_seed(seed)
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None:
        tensorflow.random.set_seed(seed & 0x7FFF_FFFF)


@functools.cache
def has_accelerator() -> bool:
    """Whether there are further generators. Seeding those that are not there is slow, and kept for ever."""
    return torch.accelerator.is_available()
