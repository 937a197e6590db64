"""The sections of a run's config. Every field says what it is to the run: identity, budget or neither."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from manyfit.config.check import HORIZONS
from manyfit.config.component import Component
from manyfit.config.kinds import Derived, Kind
from manyfit.config.roles import DATA, LOSS, METRIC, MODEL, OPTIMIZER, SCHEDULER


def needs_horizon(scheduler: Component | None) -> bool:
    """Whether a schedule's length was left to follow from the number of epochs."""
    return scheduler is not None and any(
        name not in scheduler.params for name in HORIZONS.get(scheduler.path, ())
    )


@dataclass(frozen=True, kw_only=True)
class Train:
    """How the model is trained."""

    epochs: Annotated[int, Kind.BUDGET, Gt(0)]
    loss: Annotated[Component, LOSS]
    optimizer: Annotated[Component, OPTIMIZER]
    scheduler: Annotated[Component | None, SCHEDULER] = None
    scheduler_every: Literal["step", "epoch"] = "step"
    horizon: Annotated[
        int | None, Kind.IDENTITY, Derived(lambda t: t.epochs if needs_horizon(t.scheduler) else None)
    ] = None
    metrics: Annotated[Sequence[Annotated[Component, METRIC]], Kind.NEUTRAL] = ()
    device: Annotated[str, Kind.NEUTRAL] = "auto"
    threads: Annotated[int | None, Kind.NEUTRAL, Gt(0)] = None


@dataclass(frozen=True, kw_only=True)
class Export:
    """Which checkpoint counts as the best one."""

    metric: Annotated[str, Kind.NEUTRAL] = "val_loss"
    mode: Annotated[Literal["min", "max"], Kind.NEUTRAL] = "min"


@dataclass(frozen=True, kw_only=True)
class Run:
    """The whole config of a run. Further sections are the user's own."""

    project_name: Annotated[str, Kind.NEUTRAL] = "manyfit"
    src_code_path: Annotated[Path, Kind.NEUTRAL] = Path("src")
    seed: Annotated[int, Kind.IDENTITY, Ge(0)] = 0
    data: Annotated[Component, DATA]
    model: Annotated[Component, MODEL]
    train: Train
    export: Export = field(default_factory=Export)
