"""What the ledger knows of points and trials, in memory."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from manyfit.study.units import Failure, Outcome

TrialState: TypeAlias = Literal["waiting", "running", "paused", "finished", "failed", "infeasible"]
PointState: TypeAlias = Literal["open", "finished", "stopped", "failed"]


@dataclass(slots=True)
class TrialRecord:
    """One point with one seed: how far it is, and what it has given."""

    id: str
    point: int
    seed: int
    state: TrialState = "waiting"
    step: int = 0
    epoch: float = 0.0
    steps: int = 0
    """Steps that were trained for it and committed."""
    seconds: float = 0.0
    value: float | None = None
    """The best of the objective so far."""
    curve: tuple[tuple[float, float], ...] = ()
    over: bool = False
    reason: str = ""
    deaths: int = 0
    """How often its process has died since a step was last committed."""
    split: int = 1
    """Into how many parts a batch is cut because memory ran out."""
    failure: Failure | None = None

    @property
    def is_done(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in ("finished", "failed", "infeasible")

    def take(self, outcome: Outcome, sign: int) -> None:
        """Learn how far a unit has got."""
        if outcome.step > self.step:
            self.deaths = 0
        self.step = max(self.step, outcome.step)
        self.epoch = max(self.epoch, outcome.epoch)
        self.steps += outcome.trained
        self.seconds += outcome.seconds
        if outcome.curve:
            self.curve = outcome.curve
            self.value = self.best(math.inf, sign)
        if outcome.over:
            self.over, self.reason = True, outcome.reason

    def best(self, epoch: float, sign: int) -> float | None:
        """The best value up to an epoch; what is not a number is never the best."""
        end = bisect.bisect_right(self.curve, (epoch, math.inf))
        values = [value for _, value in self.curve[:end] if not math.isnan(value)]
        return min(values, key=lambda value: sign * value) if values else None


@dataclass(slots=True)
class PointRecord:
    """One point of the space: its values, its trials, and what was decided about it."""

    number: int
    id: str
    values: Mapping[str, Any]
    origin: str
    parent: str = ""
    attrs: Mapping[str, Any] = field(default_factory=dict)
    current: bool = True
    """Whether the study, as it is written now, has this point."""
    state: PointState = "open"
    reason: str = ""
    granted: int | None = None
    """Epochs that it may be trained for, as decided so far; None is to the end."""
    trials: list[TrialRecord] = field(default_factory=list)

    def value(self, sign: int, epoch: float = math.inf) -> float | None:
        """The mean over the seeds of the best value up to an epoch; None if a seed has none or has failed."""
        found = [trial.best(epoch, sign) if not trial.failure else None for trial in self.trials]
        known = [value for value in found if value is not None]
        return sum(known) / len(known) if known and len(known) == len(found) else None

    @property
    def epoch(self) -> float:
        """Epochs that all seeds have done; one that is over has done them all."""
        return min((math.inf if trial.over else trial.epoch for trial in self.trials), default=0.0)
