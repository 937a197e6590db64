"""Points and trials of the ledger, in memory."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from manyfit.config.identity import epochs_in
from manyfit.study.work.units import Failure, Outcome

TrialState: TypeAlias = Literal["waiting", "running", "paused", "finished", "failed", "infeasible"]
PointState: TypeAlias = Literal["open", "finished", "stopped", "failed"]
Curve: TypeAlias = tuple[tuple[float, float], ...]


@dataclass(slots=True, eq=False)
class TrialRecord:
    """One point with one seed: its progress and its results."""

    id: str
    point: int
    seed: int
    state: TrialState = "waiting"
    step: int = 0
    epoch: float = 0.0
    steps: int = 0
    """Steps that were trained for it, as far as they were reported; `step` is authoritative."""
    seconds: float = 0.0
    value: float | None = None
    """The best value of the objective so far."""
    curve: Curve = ()
    over: bool = False
    reason: str = ""
    deaths: int = 0
    """How often its process has died since a step was last committed."""
    split: int = 1
    """The number of parts that a batch is split into because memory ran out."""
    failure: Failure | None = None
    _bests: tuple[Curve, int, list[float]] | None = None

    @property
    def is_done(self) -> bool:
        """Whether it is in a final state."""
        return self.state in ("finished", "failed", "infeasible")

    def take(self, outcome: Outcome, sign: int) -> None:
        """Update the record from the outcome of a unit."""
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
        """Return the best value up to an epoch; values that are not finite are ignored."""
        if self._bests is None or self._bests[0] is not self.curve or self._bests[1] != sign:
            found, best = [], math.inf
            for _, value in self.curve:
                best = min(best, sign * value) if math.isfinite(value) else best
                found.append(best)
            self._bests = (self.curve, sign, found)
        end = bisect.bisect_right(self.curve, (epoch, math.inf))
        best = self._bests[2][end - 1] if end else math.inf
        return sign * best if math.isfinite(best) else None


@dataclass(slots=True, eq=False)
class PointRecord:
    """One point of the search space: its values, its trials, and the decisions about it."""

    number: int
    id: str
    values: Mapping[str, Any]
    origin: str
    parent: str = ""
    attrs: Mapping[str, Any] = field(default_factory=dict)
    current: bool = True
    """Whether the current config of the study has this point."""
    state: PointState = "open"
    reason: str = ""
    granted: int | None = None
    """Epochs that it may train for, as decided so far; None means to the end, 0 stopped by a user."""
    trials: list[TrialRecord] = field(default_factory=list)

    def value(self, sign: int, epoch: float = math.inf) -> float | None:
        """Return the mean over seeds of the best value up to an epoch; None if a seed lacks one or failed."""
        found = [trial.best(epoch, sign) if trial.failure is None else None for trial in self.trials]
        known = [value for value in found if value is not None]
        return math.fsum(known) / len(known) if known and len(known) == len(found) else None

    @property
    def epoch(self) -> float:
        """Epochs completed by every seed that has not failed; a seed that is over has completed all."""
        going = [trial for trial in self.trials if trial.failure is None] or self.trials
        return min((math.inf if trial.over else trial.epoch for trial in going), default=0.0)


def fair_epoch(point: PointRecord, base: int) -> float:
    """Return the epoch up to which a point is judged: completed by all its seeds, and within its epochs."""
    return min(point.epoch, epochs_of(point.values, base))


def epochs_of(values: Mapping[str, Any], base: int) -> int:
    """Return the number of epochs of a point: its own value, or else that of the base config."""
    return int(epochs_in(values, base))
