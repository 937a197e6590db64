"""The sections of the config of a run. Every field has a kind: identity, budget or neither."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from annotated_types import Ge, Gt, Le, Lt
from pydantic import StringConstraints

from manyfit.config.typed.cadence import PATTERN, SEVERAL
from manyfit.config.typed.component import Component
from manyfit.config.typed.kinds import Derived, Kind
from manyfit.config.typed.logged_names import find_logged_names
from manyfit.config.typed.roles import (
    DATA,
    EVALUATOR,
    KERAS,
    LOSS,
    METRIC,
    MODEL,
    MODULE,
    OPTIMIZER,
    SCHEDULER,
    TRAINER,
    has_base,
    product_of,
    trains_itself,
)
from manyfit.config.typed.torch_facts import missing_horizon


def needs_horizon(scheduler: Component | Mapping[str, Component] | None) -> bool:
    """Return whether the length of a schedule follows from the number of epochs."""
    for each in by_name(scheduler).values():
        inside = each.params.get("schedulers") or [each.params.get("then")]
        parts = [part for part in inside if isinstance(part, Component)]
        ending = parts[-1:] if each.params.get("milestones") else parts  # the others end at milestones
        if missing_horizon(each.path, each.params) or any(map(needs_horizon, ending)):
            return True
    return False


def find_horizon(train: Train) -> int | None:
    """Return the number of epochs if the length of a schedule follows from it."""
    is_needed = needs_horizon(train.scheduler) or needs_horizon(train.momentum_scheduler)
    return train.epochs if is_needed else None


def every_scheduler(scheduler: Component | Mapping[str, Component] | None) -> Iterator[Component]:
    """Yield all schedulers, including nested ones."""
    for each in by_name(scheduler).values():
        yield each
        inner = each.params.get("schedulers") or [each.params.get("then")]
        if isinstance(inner, list | tuple):
            for part in inner:
                yield from every_scheduler(part if isinstance(part, Component) else None)


def by_name(given: Component | Mapping[str, Component] | None) -> dict[str, Component]:
    """Return one component, several by name, or none as a dict by name; a single one is named ''."""
    if given is None:
        return {}
    return {"": given} if isinstance(given, Component) else dict(given)


def short_name(component: Component) -> str:
    """Return the last part of a class path, as written."""
    return re.split("[.:]", component.written)[-1]


DEVICES: Final = r"^(auto|cpu|(cuda|mps|xpu)(:\d+)?)$"
Metric: TypeAlias = Annotated[Component, METRIC]
FORMATS: Final = ("torch", "onnx", "keras", "saved_model", "skops")
"""Export formats of the built-in kinds of models."""


@dataclass(frozen=True, kw_only=True)
class Every:
    """The cadences of logging, validation and checkpoints."""

    holds_secrets: ClassVar[bool] = False

    log: Annotated[str, Kind.NEUTRAL, StringConstraints(pattern=PATTERN)] = "1ep"
    validate: Annotated[str, StringConstraints(pattern=PATTERN)] = "1ep"
    checkpoint: Annotated[str, Kind.NEUTRAL, StringConstraints(pattern=SEVERAL)] = "auto"
    """`auto`: once per epoch, at most every 30 seconds, and at the end; `validation`: at each validation.
    Several, such as `100ba, 600s`: whichever is due first."""


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Early stopping: no improvement for some time, or a target value reached."""

    holds_secrets: ClassVar[bool] = False

    metric: str = "val_loss"
    mode: Literal["min", "max"] = "min"
    patience: Annotated[str | None, StringConstraints(pattern=PATTERN)] = None
    min_delta: Annotated[float, Ge(0)] = 0.0
    reach: float | None = None


@dataclass(frozen=True, kw_only=True)
class Guard:
    """Conditions under which a run fails without an exception: a loss that is NaN, or that diverges."""

    holds_secrets: ClassVar[bool] = False

    nan: bool = True
    divergence: Annotated[float | None, Gt(1)] = None
    """The run fails if a loss exceeds the lowest one so far by this factor."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Limits to some batches of each split, drawn at random with the seed, for quick tests."""

    holds_secrets: ClassVar[bool] = False

    train: Annotated[int | None, Gt(0)] = None
    validation: Annotated[int | None, Gt(0)] = None
    test: Annotated[int | None, Gt(0)] = None
    overfit: Annotated[int | None, Gt(0)] = None
    """Train and validate on this many batches of the training split."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """A parameter group: parameters whose names match a regular expression, with their own options."""

    holds_secrets: ClassVar[bool] = False

    match: str
    optimizer: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the optimizer for these parameters, such as lr or weight_decay."""


@dataclass(frozen=True, kw_only=True)
class Freeze:
    """Parameters that are frozen, always or for the first epochs."""

    holds_secrets: ClassVar[bool] = False

    match: str | None = None
    up_to: str | None = None
    """The name of a module: all parameters up to and including it are frozen."""
    epochs: Annotated[int | None, Gt(0)] = None
    statistics: bool = False
    """Whether the running statistics of frozen normalization layers continue to be updated."""


@dataclass(frozen=True, kw_only=True)
class WarmStart:
    """Initial weights from a run, a checkpoint or an export."""

    holds_secrets: ClassVar[bool] = False

    path: Path
    match: str = ""


@dataclass(frozen=True, kw_only=True)
class Train:
    """The training of the model."""

    holds_secrets: ClassVar[bool] = False

    epochs: Annotated[int, Kind.BUDGET, Gt(0)]
    steps: Annotated[int | None, Gt(0)] = None
    """Steps per epoch, for a data stream without a length."""
    loss: Annotated[Component | Mapping[str, Component] | None, LOSS] = None
    """One loss, or one for each of several outputs, by name; null for a model that returns its own loss;
    optional with a trainer."""
    loss_weights: Mapping[str, float] = field(default_factory=dict)
    """The weights of several losses in their sum; 1 by default."""
    optimizer: Annotated[Component | Mapping[str, Component] | None, OPTIMIZER] = None
    """null for a model that updates itself; optional with a trainer."""
    groups: Sequence[Group] = ()
    freeze: Sequence[str | Freeze] = ()
    fine_tune: Sequence[str] = ()
    """Scopes, such as `head` or `encoder.layer4`: if given, only the parameters in them are trained."""
    scheduler: Annotated[Component | Mapping[str, Component] | None, SCHEDULER] = None
    scheduler_every: Literal["step", "epoch"] = "step"
    momentum_scheduler: Annotated[Component | None, SCHEDULER] = None
    """A schedule of the momentum, or of the first beta, of the only optimizer."""
    scheduler_metric: str = "val_loss"
    """What a plateau schedule waits for. Only with a trainer, it may be a training loss."""
    horizon: Annotated[int | None, Kind.IDENTITY, Derived(find_horizon)] = None
    accumulate: Annotated[int, Gt(0)] = 1
    clip_norm: Annotated[float | None, Gt(0)] = None
    clip_value: Annotated[float | None, Gt(0)] = None
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    ema: Annotated[float | None, Gt(0), Lt(1)] = None
    class_weights: Literal["balanced"] | Sequence[float] | None = None
    warm_start: WarmStart | None = None
    metrics: Annotated[Sequence[Metric] | Mapping[str, Metric | Sequence[Metric]], Kind.NEUTRAL] = ()
    """A list, or metrics by name. A list under a name holds the metrics of the output of this name."""
    every: Every = field(default_factory=Every)
    stop: Annotated[Stop | None, Kind.BUDGET] = None
    guard: Annotated[Guard, Kind.BUDGET] = field(default_factory=Guard)
    limit: Limit = field(default_factory=Limit)
    time_dependent: bool = False
    device: Annotated[str, Kind.NEUTRAL, StringConstraints(pattern=DEVICES)] = "auto"
    threads: Annotated[int | None, Kind.NEUTRAL, Gt(0), Le(4096)] = None
    capture: Annotated[Literal["auto", "off"], Kind.NEUTRAL] = "auto"
    """Whether several steps are launched on a GPU at once, as a CUDA graph."""
    compile: Annotated[Literal["auto", "off", "default", "max-autotune"], Kind.NEUTRAL] = "auto"
    """Whether steps are compiled: if it pays, never, or always in a mode of `torch.compile`."""

    def list_metrics(self) -> list[tuple[str, str, Component]]:
        """Return each metric with its name and its config key; in a list, names come from the class paths."""
        if not isinstance(self.metrics, Mapping):
            return [(short_name(c), str(i), c) for i, c in enumerate(self.metrics)]
        found: list[tuple[str, str, Component]] = []
        for name, given in self.metrics.items():
            if isinstance(given, Component):
                found.append((name, name, given))
            else:
                found += [(f"{name}_{short_name(c)}", f"{name}.{i}", c) for i, c in enumerate(given)]
        return found

    def metric_heads(self) -> dict[str, str]:
        """Return the output that metrics belong to, by the name of the metric."""
        if not isinstance(self.metrics, Mapping):
            return {}
        lists = {name: c for name, c in self.metrics.items() if not isinstance(c, Component)}
        return {f"{name}_{short_name(c)}": name for name, given in lists.items() for c in given}

    def heads(self) -> list[str]:
        """Return the names of the outputs that have a loss of their own; empty if there is one loss."""
        return list(self.loss) if isinstance(self.loss, Mapping) else []

    def optimizers(self) -> dict[str, Component]:
        """Return all optimizers by name; the name of a single one is empty."""
        return by_name(self.optimizer)

    def schedulers(self) -> dict[str, Component]:
        """Return all schedulers by the name of their optimizer."""
        return by_name(self.scheduler)


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """The metrics of each row, and how the row report is written."""

    holds_secrets: ClassVar[bool] = False

    functions: Annotated[Mapping[str, Metric], Kind.NEUTRAL] = field(default_factory=dict)
    """Functions of (output, target) of one row, by name."""
    evaluator: Annotated[Component | None, Kind.NEUTRAL, EVALUATOR] = None
    """A class whose `get_eval_funcs()` returns functions of (y_true, y_pred) of one row, by name."""
    batch_size: Annotated[int | None, Kind.IDENTITY, Ge(1)] = None
    """Rows of a batch of validation, evaluation and reports; by default, that of training."""
    worst: Annotated[int, Kind.NEUTRAL, Ge(0)] = 10
    parquet: Annotated[bool, Kind.NEUTRAL] = False
    figures: Annotated[bool, Kind.NEUTRAL] = False
    """Draw a confusion matrix and calibration, residuals, or images, next to the report (extra `plots`)."""
    outputs: Annotated[Literal["full", "summary", "none"], Kind.NEUTRAL] = "summary"
    """Targets and predictions that are large arrays: store them beside the report, summarize them, or omit
    them."""


@dataclass(frozen=True, kw_only=True)
class Export:
    """Which checkpoint is the best, how many are kept, and what is exported at the end."""

    holds_secrets: ClassVar[bool] = False

    metric: Annotated[str, Kind.NEUTRAL] = "val_loss"
    mode: Annotated[Literal["min", "max"], Kind.NEUTRAL] = "min"
    keep: Annotated[int, Kind.NEUTRAL, Ge(1)] = 2
    top: Annotated[int, Kind.NEUTRAL, Ge(1)] = 1
    exporters: Annotated[Sequence[Literal["best", "final", "top"]], Kind.NEUTRAL] = ("best",)
    """Which models are exported: the best one to `exported/`, always; the final one and the `top` best ones
    to folders beside it."""
    formats: Annotated[Literal["auto"] | Sequence[str], Kind.NEUTRAL] = ()
    """Further export formats of the best model, for serving; `auto` is the serving format of its framework:
    `torch` for a module."""


@dataclass(frozen=True, kw_only=True)
class Track:
    """Mirrors of the metrics."""

    holds_secrets: ClassVar[bool] = True

    tensorboard: Annotated[bool, Kind.NEUTRAL] = True
    mlflow: Annotated[str | None, Kind.NEUTRAL] = None
    """The tracking URI of MLflow, a server or a store: http://…, sqlite:///mlflow.db.

    `auto`: MLFLOW_TRACKING_URI, else a file in the project; disabled if the extra is not installed."""


@dataclass(frozen=True, kw_only=True)
class Submit:
    """The resources that a Slurm job requests."""

    holds_secrets: ClassVar[bool] = False

    time: Annotated[str | None, Kind.NEUTRAL] = None
    memory: Annotated[str | None, Kind.NEUTRAL] = None
    cpus: Annotated[int | None, Kind.NEUTRAL, Ge(1)] = None
    gpus: Annotated[int | str | None, Kind.NEUTRAL] = None
    partition: Annotated[str | None, Kind.NEUTRAL] = None
    account: Annotated[str | None, Kind.NEUTRAL] = None
    tasks: Annotated[int | None, Kind.NEUTRAL, Ge(1)] = None
    """Number of jobs into which a study is divided; by default, one per trial."""
    at_once: Annotated[int | None, Kind.NEUTRAL, Ge(1)] = None
    max_queued: Annotated[int | None, Kind.NEUTRAL, Ge(1)] = None
    """Nothing is submitted if there would be more queued jobs than this."""
    warning: Annotated[int, Kind.NEUTRAL, Ge(1)] = 120
    """Seconds before the time limit at which a checkpoint is written."""
    setup: Annotated[Sequence[str], Kind.NEUTRAL] = ()
    """Lines of the job script before the command: modules to load, an environment to activate."""
    options: Annotated[Sequence[str], Kind.NEUTRAL] = ()
    """Further options of sbatch, such as `--constraint=a100`."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """The complete config of a run. Further sections are custom ones."""

    holds_secrets: ClassVar[bool] = True
    """Text fields may hold a `Secret`, which the caller must reveal."""

    project_name: Annotated[str, Kind.NEUTRAL] = "manyfit"
    project_path: Annotated[Path | None, Kind.NEUTRAL] = None
    """The project root, for a run folder outside the project."""
    src_code_path: Annotated[Path, Kind.NEUTRAL] = Path("src")
    seed: Annotated[int, Kind.IDENTITY, Ge(0)] = 0
    data: Annotated[Component, DATA]
    model: Annotated[Component | None, MODEL] = None
    """Optional with a trainer that has networks of its own."""
    trainer: Annotated[Component | None, TRAINER] = None
    """An object with training functions of its own: a step, an epoch, or the whole loop."""
    train: Train
    evaluate: Evaluate = field(default_factory=Evaluate)
    export: Export = field(default_factory=Export)
    track: Track = field(default_factory=Track)
    submit: Submit = field(default_factory=Submit)

    @property
    def subject(self) -> Component:
        """The component whose weights are trained and exported: the model, or a trainer without one."""
        found = self.model if self.model is not None else self.trainer
        assert found is not None
        return found

    def has_own_functions(self) -> bool:
        """Return whether training is up to functions of the user's, which may need no loss or optimizer."""
        product = product_of(self.model.target) if self.model is not None else None
        return self.trainer is not None or trains_itself(product)

    def list_logged(self) -> list[str] | None:
        """Return the names of logged values; None if only the built model determines them."""
        product = product_of(self.subject.target)
        if self.has_own_functions() or hasattr(product, "train_step"):
            return None
        if not has_base(product, (MODULE,)) or has_base(product, (KERAS,)):
            return None
        heads = [f"{split}_loss_{head}" for head in self.train.heads() for split in ("train", "val")]
        own = [f"{split}_{name}" for name in find_logged_names(product) for split in ("train", "val")]
        metrics = [f"val_{name}" for name, _, _ in self.train.list_metrics()]
        return ["train_loss", "lr", "val_loss", *heads, *metrics, *own]
