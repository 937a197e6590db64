"""The sections of a study file as typed records: objective, search, execute and track."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final, Literal

from annotated_types import Ge, Gt, Le
from pydantic import StringConstraints

from manyfit.config.study.quantities import DURATION, SIZE
from manyfit.config.typed.component import Component
from manyfit.config.typed.kinds import Kind
from manyfit.config.typed.roles import EXECUTOR, SAMPLER, STOPPER

GRID: Final = "manyfit.samplers.Grid"
INLINE: Final = "manyfit.executors.inline"
LATER: Final[Mapping[str, tuple[Callable[[Any], bool], str, str]]] = {
    "on": (lambda value: value == "ray", "this version has no executor for Ray yet", "inline or processes"),
    "fuse": (
        lambda value: value not in ("off", False),
        "this version trains every trial by itself and cannot fuse several into one step yet",
        "off, or leave the key out",
    ),
    "hop": (
        lambda value: value is not False,
        "this version trains every trial on all data and cannot let it hop between shards yet",
        "false, or leave the key out",
    ),
}
"""Keys of `execute` that will mean something in a later version, and which values are refused until then."""
KEYS: Final = ("base", "set", "objective", "search", "space", "execute", "track")


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What is better: a metric of the log, and its direction. A trial's value is its best one."""

    holds_secrets: ClassVar[bool] = False

    metric: str
    mode: Literal["min", "max"]

    @property
    def sign(self) -> int:
        """Multiplied by this, less is better."""
        return 1 if self.mode == "min" else -1


@dataclass(frozen=True, kw_only=True)
class Search:
    """Which points are tried, how often, and when one is given up."""

    holds_secrets: ClassVar[bool] = False

    method: Annotated[Component, SAMPLER]
    trials: Annotated[int | None, Gt(0)] = None
    """How many points; a grid takes all."""
    seeds: Annotated[int, Gt(0), Le(10_000)] | Sequence[int] = 1
    """Replicates of every point: how many, counted up from the seed of the base, or which."""
    seed: Annotated[int, Ge(0)] = 0
    """The seed of the search itself."""
    stop: Annotated[Component | None, STOPPER] = None
    steps: Annotated[int | None, Gt(0)] = None
    """A budget: no unit is started once the study has trained this many steps."""
    time: Annotated[str | None, StringConstraints(pattern=DURATION)] = None
    """A budget: no unit is started once the study has run this long."""


@dataclass(frozen=True, kw_only=True)
class Execute:
    """Where trials are trained, and what happens to those that go wrong."""

    holds_secrets: ClassVar[bool] = False

    on: Annotated[Component | None, EXECUTOR] = None
    """The executor: `auto`, `inline`, `processes`, or the class path of your own."""
    workers: Annotated[int | None, Gt(0), Le(4096)] = None
    """How many trials are trained at once; one for each core or GPU, if not said."""
    threads: Annotated[int | None, Gt(0), Le(4096)] = None
    """Threads of each trial; one, unless the base says otherwise."""
    gpus: Literal["auto", "idle", "none"] | Sequence[int] = "auto"
    fuse: Literal["off"] = "off"
    hop: Literal[False] = False
    timeout: Annotated[str | None, StringConstraints(pattern=DURATION)] = "30m"
    """How long a trial may show no sign of life."""
    memory: Annotated[str | None, StringConstraints(pattern=SIZE)] = None
    """How much memory a worker may allocate; a trial that needs more fails as out of memory."""
    retries: Annotated[int, Ge(0)] = 2
    """How often a trial is tried again after its worker died without a step being committed in between."""
    keep: Annotated[int | None, Gt(0)] = None
    """Keep the checkpoints of this many best points; all, if not said."""
    evaluate: Literal["best", "all"] = "best"
    """Which trials are exported and evaluated row by row at the end."""

    @property
    def is_inline(self) -> bool:
        """Whether everything happens in the driver's process."""
        return self.on is not None and self.on.path == INLINE


@dataclass(frozen=True, kw_only=True)
class Mirrors:
    """Where the study is mirrored to."""

    holds_secrets: ClassVar[bool] = True

    tensorboard: bool = False
    """TensorBoard's HParams page, and curves for every trial."""
    mlflow: str | None = None


@dataclass(frozen=True, kw_only=True)
class Described:
    """What stands in a study file beside its base and its space."""

    objective: Objective
    search: Search
    execute: Execute = field(default_factory=Execute)
    track: Annotated[Mirrors, Kind.NEUTRAL] = field(default_factory=Mirrors)
