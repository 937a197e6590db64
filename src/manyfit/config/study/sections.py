"""The sections of a study file as typed records: objective, search, execute and track."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final, Literal

from annotated_types import Ge, Gt, Le
from pydantic import StringConstraints

from manyfit.config.study.quantities import DURATION, SIZE
from manyfit.config.typed.component import Component
from manyfit.config.typed.kinds import Kind
from manyfit.config.typed.roles import EXECUTOR, SAMPLER, STOPPER

GRID: Final = "manyfit.samplers.Grid"
INLINE: Final = "manyfit.executors.inline"
RAY: Final = "manyfit.executors.ray"
KEYS: Final = ("base", "set", "objective", "search", "space", "execute", "track")


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The logged metric to optimize, and its direction. The value of a trial is its best one."""

    holds_secrets: ClassVar[bool] = False

    metric: str
    mode: Literal["min", "max"]

    @property
    def sign(self) -> int:
        """The factor that makes lower values better."""
        return 1 if self.mode == "min" else -1


@dataclass(frozen=True, kw_only=True)
class Search:
    """Which points are tried, with how many replicates, and when a point stops early."""

    holds_secrets: ClassVar[bool] = False

    method: Annotated[Component, SAMPLER]
    trials: Annotated[int | None, Gt(0)] = None
    """Number of points; a grid tries all."""
    seeds: Annotated[int, Gt(0), Le(10_000)] | Sequence[int] = 1
    """Replicates of every point: a number, with seeds counting up from that of the base, or the seeds."""
    folds: Annotated[int | None, Ge(2), Le(1_000)] = None
    """Replicates by cross-validation: every seed of every point is trained once for each fold."""
    seed: Annotated[int, Ge(0)] = 0
    """The seed of the search itself."""
    stop: Annotated[Component | None, STOPPER] = None
    steps: Annotated[int | None, Gt(0)] = None
    """A budget: no unit starts after the study has trained this many steps."""
    time: Annotated[str | None, StringConstraints(pattern=DURATION)] = None
    """A budget: no unit starts after the study has run for this long."""


@dataclass(frozen=True, kw_only=True)
class Execute:
    """Where trials are trained, and how failures are handled."""

    holds_secrets: ClassVar[bool] = False

    on: Annotated[Component | None, EXECUTOR] = None
    """The executor: `auto`, `inline`, `processes`, `ray`, or the class path of your own."""
    workers: Annotated[int | None, Gt(0), Le(4096)] = None
    """Number of trials trained in parallel; by default, one per core or GPU."""
    threads: Annotated[int | None, Gt(0), Le(4096)] = None
    """Threads per trial; by default those of the base, else one."""
    cpus: Annotated[float | None, Gt(0), Le(4096)] = None
    """CPUs that Ray reserves for each worker; by default, one per thread."""
    gpus: Literal["auto", "idle", "none"] | Sequence[int] | Annotated[float, Gt(0)] = "auto"
    """The GPUs of the workers. A number is the part of a GPU that each worker uses, such as 0.5."""
    fuse: Literal["off", "auto"] | Annotated[int, Gt(1), Le(4096)] = "off"
    """Whether trials of one structure train in one pass: `auto` if that is faster, or up to this many."""
    streams: Literal["auto"] | Annotated[int, Gt(0), Le(64)] = "auto"
    """How many groups of different structures a worker trains side by side on its GPU; `auto` is one, unless
    more are planned."""
    hop: bool = False
    """Whether trials visit one shard of the training rows after another, each on the worker that has it."""
    order: Literal["cyclic", "free"] = "cyclic"
    """In which order a hopping trial visits the shards: from its first shard on, or as workers are free."""
    timeout: Annotated[str | None, StringConstraints(pattern=DURATION)] = "30m"
    """How long a trial may show no sign of life."""
    memory: Annotated[str | None, StringConstraints(pattern=SIZE)] = None
    """Memory limit of a worker; a trial that needs more fails as out of memory."""
    retries: Annotated[int, Ge(0)] = 2
    """Number of retries after the worker of a trial died without committing a step in between."""
    keep: Annotated[int | None, Gt(0)] = None
    """Number of best points whose checkpoints are kept; by default, all."""
    evaluate: Literal["best", "all"] = "best"
    """Which trials are exported and get a row report at the end."""

    @property
    def is_inline(self) -> bool:
        """Whether trials are trained in the driver's process."""
        return self.on is not None and self.on.path == INLINE

    @property
    def is_ray(self) -> bool:
        """Whether trials are trained on a Ray cluster."""
        return self.on is not None and self.on.path == RAY


@dataclass(frozen=True, kw_only=True)
class Mirrors:
    """Mirrors of the study."""

    holds_secrets: ClassVar[bool] = True

    tensorboard: bool = False
    """TensorBoard's HParams page, and curves for every trial."""
    mlflow: str | None = None


@dataclass(frozen=True, kw_only=True)
class Described:
    """The sections of a study file other than base and space."""

    objective: Objective
    search: Search
    execute: Execute = field(default_factory=Execute)
    track: Annotated[Mirrors, Kind.NEUTRAL] = field(default_factory=Mirrors)
