"""The objects of a config: data, model, metrics, and the learner with loss, optimizer and schedule."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from manyfit.config import Component, Config
from manyfit.config.dialects.table import dialect_of
from manyfit.config.schema.consistency import RESERVED
from manyfit.config.typed.component import assign_blame
from manyfit.config.typed.roles import product_of
from manyfit.core.errors import ComponentFailed, ManyfitError, Origin, UsageError
from manyfit.core.names import listing
from manyfit.core.redaction import redact
from manyfit.core.seeds import derive
from manyfit.core.tracebacks import user_frame
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
    order_of,
    steps_of,
)
from manyfit.learn.kind import LearnerKind, Setup, kind_of
from manyfit.learn.learner import Learner
from manyfit.learn.models import LIVE, Made, build_seeded, make_model, seed_everything
from manyfit.learn.split_metrics import HeadMetric, is_split_metric
from manyfit.run.build.evaluator import Evaluator
from manyfit.run.build.folds import divide_folds
from manyfit.run.build.sharding import check_visits, find_layout, find_visits
from manyfit.run.build.shared_data import BuiltData, SharedData, read_surroundings
from manyfit.run.loop.plan import Plan

log = logging.getLogger("manyfit")

LEARNER: Final = tuple(
    name for name in (*vars(Learner), *Learner.__annotations__) if not name.startswith("_")
)
"""The attributes of every learner."""
SPLITS: Final[tuple[Split, ...]] = ("train", "validation", "test")


@dataclass(frozen=True)
class Built:
    """The objects of a config, ready to train."""

    learner: Learner
    kind: LearnerKind
    plan: Plan
    order: Order
    train: Source
    validation: Source | None
    test: Source | None
    whole: Mapping[str, Any]
    """Metrics of a whole split."""
    evaluator: Evaluator
    """Evaluation functions of one row."""
    splits: BuiltData
    """The data as built; the sources above may be parts of it."""
    evaluation_batch_size: int = 1
    settings: Any = None
    """The config as passed to components; it records which values they have read."""

    @property
    def row_order(self) -> Order:
        """The order in which training rows are read, with the settings of their source."""
        return order_of(self.train, self.order)

    def fingerprints(self) -> dict[str, str]:
        """Return the fingerprint of each split."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        found = {
            name: self.splits.fingerprint(name, source)
            for name, source in splits.items()
            if source is not None
        }
        if self.order.layout is not None:
            found["train"] = self.order.layout.derive_fingerprint(found["train"])
        return found

    def split(self, name: str) -> Source | None:
        """Return the source of a split, or None if it has no rows."""
        found: Source | None = {"train": self.train, "validation": self.validation, "test": self.test}[name]
        return found if found is not None and len(found) else None


def build(config: Config, *, warm: bool = False, shared: SharedData | None = None) -> Built:
    """Build everything: first what fails quickly, then the data. Initial weights depend only on the seed.

    With `warm`, the model starts from the weights of `train.warm_start`. `shared` is data that was built for
    other runs.
    """
    run = config.run
    device = device_of(run.train.device, config.origin("train.device"))
    made = build_model(config)
    kind = kind_of(made.model if run.trainer is None else product_of(run.trainer.target))
    kind.check(config, made)
    kind.prepare(config, made, device, warm)
    metrics = build_metrics(config)
    splits = read_splits(config, shared)
    order, sources = limit_splits(config, splits)
    train, validation, test = (sources[split] for split in SPLITS)
    if train is None or not len(train):
        raise UsageError(f"{run.data.origin}: data: {run.data.path} has no rows to train on")
    if made.class_weight:
        train = ClassWeighted(train, made.class_weight)
    check_measured(config, validation)
    seed_everything(derive(run.seed, "loss"))
    epochs, steps = kind.budget(run.train, lambda: steps_of(train, order))
    whole = {
        name: metric for name, metric in metrics.items() if is_split_metric(getattr(metric, "metric", metric))
    }
    by_row = {name: metric for name, metric in metrics.items() if name not in whole}
    learner = build_learner(
        kind,
        Setup(
            config, made, device, order, train, validation, test, steps, epochs, by_row, warm,
            describe_feeder(config), key_of(config, "unused"),
        )
    )  # fmt: skip
    if learner.reads_data:  # training is one step
        epochs = steps = 1
    plan = Plan.of(dataclasses.replace(run.train, epochs=epochs), steps, learner.grain)
    check_grain(config, plan)
    evaluator, settings = build_evaluator(config), run.data.params.get("settings")
    size = run.evaluate.batch_size or order.batch_size
    built = Built(
        learner, kind, plan, order, train, validation, test, whole, evaluator, splits, size, settings
    )
    log_details(config, made, built)
    return built


def build_metrics(config: Config) -> dict[str, Any]:
    """Build the metrics by name; those of one of several outputs know which."""
    heads = config.run.train.metric_heads()
    found = {name: component.build() for name, _, component in config.run.train.list_metrics()}
    return {name: HeadMetric(each, heads[name]) if name in heads else each for name, each in found.items()}


def build_learner(kind: LearnerKind, setup: Setup) -> Learner:
    """Build the learner of a kind, and check that it has all attributes of a learner."""
    found = kind.build(setup)
    missing = [name for name in LEARNER if not hasattr(found, name)]
    if missing:
        raise UsageError(
            f"the kind {kind.name!r} must build a learner, but built {found!r:.60}, which has no "
            f"{listing(missing)}; derive it from manyfit.learn.learner.BaseLearner"
        )
    return found


def check_grain(config: Config, plan: Plan) -> None:
    """Raise an error for a cadence that is not a multiple of the steps that a learner trains at once."""
    if plan.grain == 1:
        return
    cadences = [("log", plan.log), ("validate", plan.validate), *(("checkpoint", c) for c in plan.checkpoint)]
    for name, cadence in cadences:
        if not cadence.by_time and cadence.steps(plan.steps_per_epoch) % plan.grain:
            where = config.origin(f"train.every.{name}") or config.run.subject.origin
            given = getattr(config.run.train.every, name)
            raise UsageError(
                f"{where}: train.every.{name}: the model trains {plan.grain} steps at once and {given} falls "
                "between them; set 1ep, or several epochs"
            )


def log_details(config: Config, made: Made, built: Built) -> None:
    """Log what was built."""
    if not log.isEnabledFor(logging.DEBUG):
        return
    log.debug("model: %s from %s", type(made.model).__name__, config.run.subject.origin)
    for line in built.learner.details():
        log.debug("%s", line)
    for split, source in (("train", built.train), ("validation", built.validation), ("test", built.test)):
        count = "none" if source is None else f"{type(source).__name__} of {len(source):,} rows"
        log.debug("data, %s: %s", split, count)
    log.debug("%d epochs of %d steps", built.plan.epochs, built.plan.steps_per_epoch)


def without_callbacks(built: Built) -> Built:
    """Return the same objects without the callbacks of the model, which may write files."""
    return dataclasses.replace(built, learner=built.learner.without_callbacks())


def build_model(config: Config) -> Made:
    """Build the model with weights that depend only on the seed, also if building it imports modules."""
    component, live = config.run.model, LIVE.get()
    if live:
        return Made(live["model"])
    if component is None:  # a trainer with networks of its own
        return Made(None)
    seed = derive(config.run.seed, "weights")
    found: Made = build_seeded(seed, lambda: make_model(component))
    return found


def describe_feeder(config: Config) -> str:
    """Return the data source, as the user's config file names it."""
    return f"{config.run.data.origin}: {dialect_of(config.tree).fed_by(config.run.data)}"


def key_of(config: Config, name: str) -> str:
    """Return the path of a key of the data set in the user's config file."""
    return dialect_of(config.tree).key_beside(name)


def build_evaluator(config: Config) -> Evaluator:
    """Build the evaluation functions of the config and of its evaluator."""
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
            raise UsageError(f"{name}: a report already has a column named {key!r}; choose another name")
    return Evaluator(functions, points)


def read_splits(config: Config, shared: SharedData | None = None) -> BuiltData:
    """Return the source of each split; data that another run has built is reused."""
    run = config.run
    if shared is not None and (known := shared.get(config)) is not None:
        return known
    seed_everything(derive(run.seed, "data"))
    before = read_surroundings(run.data) if shared is not None else None
    data = LIVE.get().get("data") or run.data.build()
    if not isinstance(data, Data):
        raise UsageError(
            f"{run.data.origin}: data: {run.data.path} needs the attribute batch_size and source()"
        )
    if type(data.batch_size) is not int or data.batch_size < 1:
        raise UsageError(
            f"{run.data.origin}: data: the batch_size of {run.data.path} must be a positive integer, "
            f"but is {data.batch_size!r}"
        )
    sources = divide_folds(run.data, {split: split_of(run.data, data, split) for split in SPLITS})
    found = BuiltData(data.batch_size, sources, data)
    if shared is None:
        return found
    return shared.put(config, found, was_left_alone=read_surroundings(run.data) == before)


def limit_splits(config: Config, found: BuiltData) -> tuple[Order, dict[str, Source | None]]:
    """Return the order of rows and the source of each split, within the limits of the config."""
    run, size, sources = config.run, found.batch_size, dict(found.sources)
    limit = run.train.limit
    layout = find_layout(config, sources["train"], size)
    if run.train.steps is not None:
        set_steps(config, sources["train"], run.train.steps * size)
    if limit.overfit is not None and sources["train"] is not None:
        first = Limited(sources["train"], limit.overfit * size, run.seed)
        sources |= {"train": first, "validation": first}
    for split in SPLITS:
        batches, source = getattr(limit, split), sources[split]
        if batches is not None and source is not None and (split != "train" or layout is None):
            sources[split] = Limited(source, batches * size, run.seed)
    start = run.data.beside.get("first_shard") or 0
    order = Order(size, run.seed, layout=layout, first_shard=start, visits=find_visits(config, layout))
    check_visits(config, order_of(sources["train"], order))
    return order, sources


def set_steps(config: Config, source: Source | None, rows: int) -> None:
    """Set how many rows of a stream make an epoch."""
    if not (isinstance(source, IterableSource) and source.is_stream):
        raise UsageError(
            f"{config.origin('train.steps')}: train.steps: the data has a length, so an epoch is all of it; "
            "to train on less, set train.limit.train"
        )
    source.count = rows


def check_measured(config: Config, validation: Source | None) -> None:
    """Raise an error if the config depends on a validation metric, but there are no validation rows."""
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
        waits = config.run.train.scheduler_metric.startswith("val_")
        if scheduler.path.endswith(".ReduceLROnPlateau") and waits:
            raise UsageError(f"{scheduler.origin}: train.scheduler: there are no validation rows to wait for")


def split_of(component: Component, data: Data, split: Split) -> Source | None:
    """Return the source of one split of the user's data."""
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
    return assign_blame(failed, error)


def device_of(name: str, asked: Origin | None) -> torch.device:
    """Return the device; `auto` selects a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cpu":
        return device
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        here = f"there are {count} GPUs here" if count else "there is no GPU here"
        raise UsageError(f"{asked}: train.device: {name!r} was requested, but {here}; set auto or cpu")
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UsageError(f"{asked}: train.device: {name!r} cannot be used here: {reason}") from None
    return device
