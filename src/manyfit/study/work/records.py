"""What the ledger knows of points and trials, in memory."""

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
    """One point with one seed: how far it is, and what it has given."""

    id: str
    point: int
    seed: int
    state: TrialState = "waiting"
    step: int = 0
    epoch: float = 0.0
    steps: int = 0
    """Steps that were trained for it, as far as somebody could say so; `step` is what counts."""
    seconds: float = 0.0
    value: float | None = None
    """The best of the objective so far."""
    curve: Curve = ()
    over: bool = False
    reason: str = ""
    deaths: int = 0
    """How often its process has died since a step was last committed."""
    split: int = 1
    """Into how many parts a batch is cut because memory ran out."""
    failure: Failure | None = None
    _bests: tuple[Curve, int, list[float]] | None = None

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
        """The best value up to an epoch; what is not finite is never the best."""
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
    """Epochs that it may be trained for, as decided so far; None is to the end, 0 is stopped by a person."""
    trials: list[TrialRecord] = field(default_factory=list)

    def value(self, sign: int, epoch: float = math.inf) -> float | None:
        """The mean over the seeds of the best value up to an epoch; None if a seed has none or has failed."""
        found = [trial.best(epoch, sign) if trial.failure is None else None for trial in self.trials]
        known = [value for value in found if value is not None]
        return math.fsum(known) / len(known) if known and len(known) == len(found) else None

    @property
    def epoch(self) -> float:
        """Epochs that all seeds have done which have not failed; one that is over has done them all."""
        going = [trial for trial in self.trials if trial.failure is None] or self.trials
        return min((math.inf if trial.over else trial.epoch for trial in going), default=0.0)


def fair_epoch(point: PointRecord, base: int) -> float:
    """The epoch up to which a point is judged: what all of its seeds have done, and no more than is asked."""
    return min(point.epoch, epochs_of(point.values, base))


def epochs_of(values: Mapping[str, Any], base: int) -> int:
    """How many epochs a point has: its own number, if it has one, else that of the base."""
    return int(epochs_in(values, base))
