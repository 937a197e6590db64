"""The sections of a run's config. Every field says what it is to the run: identity, budget or neither."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, TypeAlias

from annotated_types import Ge, Gt
from pydantic import StringConstraints

from manyfit.config.component import Component
from manyfit.config.kinds import Derived, Kind
from manyfit.config.roles import DATA, LOSS, METRIC, MODEL, OPTIMIZER, SCHEDULER
from manyfit.config.torch_facts import missing_horizon
from manyfit.core.names import listing, nearest


def needs_horizon(scheduler: Component | None) -> bool:
    """Whether a schedule's length was left to follow from the number of epochs."""
    return scheduler is not None and bool(missing_horizon(scheduler.path, scheduler.params))


DEVICES: Final = r"^(auto|cpu|(cuda|mps|xpu)(:\d+)?)$"
RESERVED: Final = ("id", "target", "prediction", "confidence", "loss")
"""Columns of a report, which no metric can be called."""

Metric: TypeAlias = Annotated[Component, METRIC]


@dataclass(frozen=True, kw_only=True)
class Train:
    """How the model is trained."""

    holds_secrets: ClassVar[bool] = False

    epochs: Annotated[int, Kind.BUDGET, Gt(0)]
    loss: Annotated[Component, LOSS]
    optimizer: Annotated[Component, OPTIMIZER]
    scheduler: Annotated[Component | None, SCHEDULER] = None
    scheduler_every: Literal["step", "epoch"] = "step"
    horizon: Annotated[
        int | None, Kind.IDENTITY, Derived(lambda t: t.epochs if needs_horizon(t.scheduler) else None)
    ] = None
    metrics: Annotated[Sequence[Metric] | Mapping[str, Metric], Kind.NEUTRAL] = ()
    device: Annotated[str, Kind.NEUTRAL, StringConstraints(pattern=DEVICES)] = "auto"
    threads: Annotated[int | None, Kind.NEUTRAL, Gt(0)] = None

    def named_metrics(self) -> list[tuple[str, str, Component]]:
        """Each metric with its name and its key in the config; a list names them as they are written."""
        if isinstance(self.metrics, Mapping):
            return [(name, name, component) for name, component in self.metrics.items()]
        return [(re.split("[.:]", c.written)[-1], str(i), c) for i, c in enumerate(self.metrics)]


@dataclass(frozen=True, kw_only=True)
class Export:
    """Which checkpoint counts as the best one."""

    holds_secrets: ClassVar[bool] = False

    metric: Annotated[str, Kind.NEUTRAL] = "val_loss"
    mode: Annotated[Literal["min", "max"], Kind.NEUTRAL] = "min"


@dataclass(frozen=True, kw_only=True)
class Run:
    """The whole config of a run. Further sections are the user's own."""

    holds_secrets: ClassVar[bool] = True
    """Its text may be a `Secret`, which whoever uses it has to reveal."""

    project_name: Annotated[str, Kind.NEUTRAL] = "manyfit"
    src_code_path: Annotated[Path, Kind.NEUTRAL] = Path("src")
    seed: Annotated[int, Kind.IDENTITY, Ge(0)] = 0
    data: Annotated[Component, DATA]
    model: Annotated[Component, MODEL]
    train: Train
    export: Export = field(default_factory=Export)

    def measured(self) -> list[str]:
        """The names under which values are logged."""
        return ["train_loss", "lr", "val_loss", *(f"val_{name}" for name, _, _ in self.train.named_metrics())]

    def problems(self) -> list[tuple[tuple[str, ...], str, str, str, str]]:
        """What fields say about each other: (path, message, expected, received, suggestion)."""
        found: list[tuple[tuple[str, ...], str, str, str, str]] = []
        seen: set[str] = set()
        for name, key, _ in self.train.named_metrics():
            where = ("train", "metrics", key)
            if name in (*RESERVED, "class") or not name:
                found.append((where, "a metric cannot have this name", "another name", repr(name), ""))
            elif name in seen:
                named = f"names of your own: metrics: {{{name}_1: ..., {name}_2: ...}}"
                found.append((where, "two metrics have the same name", named, name, ""))
            seen.add(name)
        known = self.measured()
        if self.export.metric not in known:
            found.append(
                (
                    ("export", "metric"),
                    "nothing of this name is measured",
                    f"one of {listing(known)}",
                    repr(self.export.metric),
                    nearest(self.export.metric, known),
                )
            )
        return found
