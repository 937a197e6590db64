"""The executor on a simulated clock: curves and durations are functions; workers cost nothing."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias

from manyfit.core.seeds import derive
from manyfit.study.executors.base import Executor
from manyfit.study.work.units import Failure, Outcome, Trial, Unit

Curve: TypeAlias = Callable[[Mapping[str, Any], int, int], float]
"""Values of the axes, seed, epoch → objective."""


def exponential(values: Mapping[str, Any], seed: int, epoch: int) -> float:
    """Return the value at an epoch of a curve that decays to a level set by `values`, with noise."""
    level = (derive(0, *(f"{key}={value}" for key, value in sorted(values.items()))) % 1000) / 1000
    noise = (derive(seed, "noise", f"{level}", epoch) % 1000) / 1e5
    return float(level + 0.5 ** (epoch / 3) + noise)


class Simulated(Executor):
    """An executor that returns simulated outcomes. `seconds` returns the duration of an epoch."""

    keeps_folders: ClassVar[bool] = False

    def __init__(
        self,
        slots: int = 1,
        *,
        epochs: int,
        curve: Curve = exponential,
        seconds: Callable[[Trial], float] = lambda trial: 1.0,
        failure: Callable[[Trial], Failure | None] = lambda trial: None,
        steps_per_epoch: int = 10,
        visits: int = 1,
        speeds: Sequence[float] = (),
    ) -> None:
        """`visits` is the number of shards; with more than one, `seconds` is the duration of a visit, on a
        worker of speed 1."""
        self._visits = visits
        self.worked = 0.0
        """Seconds of simulated work, over all workers."""
        self.units = 0
        """Units that were executed, counted once for each of their trials."""
        self.places = [f"worker-{i}" for i in range(slots)] if visits > 1 else []
        self.speeds = dict(zip(self.places, speeds, strict=False))
        self.slots = slots
        self._epochs = epochs
        self._curve = curve
        self._seconds = seconds
        self._failure = failure
        self._steps = steps_per_epoch
        self._clock = 0.0
        self._reached: dict[str, int] = {}
        self._number = itertools.count()
        self._busy: list[tuple[float, int, Outcome]] = []

    def submit(self, unit: Unit) -> None:
        """Determine immediately how it will end, and when."""
        self.check_place(unit)
        began = self._clock
        for trial in unit.trials:
            outcome = self._outcome(trial, unit)
            if unit.place in self.speeds:
                outcome = replace(outcome, seconds=outcome.seconds / self.speeds[unit.place])
            began += outcome.seconds
            self.worked += outcome.seconds
            self.units += unit.purpose == "train"
            heapq.heappush(self._busy, (began, next(self._number), outcome))

    def _outcome(self, trial: Trial, unit: Unit) -> Outcome:
        if unit.shard is not None:
            return self._visit(trial, unit)
        start = self._reached.get(trial.id, 0)
        until = min(unit.until.epoch if unit.until is not None else self._epochs, self._epochs)
        if unit.purpose != "train":
            facts = {"shards": float(self._visits)} if self._visits > 1 else {}
            return Outcome(trial.id, facts=facts)
        if (failure := self._failure(trial)) is not None:
            return Outcome(trial.id, start * self._steps, start, failure=failure)
        self._reached[trial.id] = until
        curve = tuple((float(e), self._curve(trial.values, trial.seed, e)) for e in range(1, until + 1))
        return Outcome(
            trial.id, until * self._steps, until, (until - start) * self._steps, until == self._epochs,
            curve=curve, seconds=(until - start) * self._seconds(trial),
        )  # fmt: skip

    def _visit(self, trial: Trial, unit: Unit) -> Outcome:
        """Return the outcome of a visit to one of `visits` shards."""
        assert unit.until is not None
        epoch, over = divmod(unit.until.visit, self._visits)
        epoch += unit.until.epoch
        if (failure := self._failure(trial)) is not None:
            return Outcome(trial.id, failure=failure)
        curve = tuple((float(e), self._curve(trial.values, trial.seed, e)) for e in range(1, epoch + 1))
        done = epoch + over / self._visits
        return Outcome(
            trial.id, round(done * self._steps), done, 1, epoch == self._epochs, curve=curve,
            seconds=self._seconds(trial),
        )  # fmt: skip

    def wait(self, timeout: float | None = None, wake: Sequence[int] = ()) -> list[Outcome]:
        """Advance the clock to the next outcome."""
        if not self._busy or (timeout is not None and self._busy[0][0] > self._clock + timeout):
            self._clock += timeout or 0.0
            return []
        self._clock, _, outcome = heapq.heappop(self._busy)
        return [outcome]

    def interrupt(self, trials: Collection[str] | None = None) -> None:
        """End trials now as preempted, at the epoch at which they started."""
        for entry in [e for e in self._busy if trials is None or e[2].trial in trials]:
            self._busy.remove(entry)
            start = max(0, int(entry[2].epoch) - entry[2].trained // self._steps)
            self._reached[entry[2].trial] = start
            ended = Outcome(
                entry[2].trial, start * self._steps, start, failure=Failure("preempted", "interrupted")
            )
            self._busy.append((self._clock, next(self._number), ended))
        heapq.heapify(self._busy)

    def close(self) -> None:
        """Discard all units."""
        self._busy.clear()

    def now(self) -> float:
        """Return the seconds of the simulated clock."""
        return self._clock
