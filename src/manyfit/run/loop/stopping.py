"""Is a run over before its last epoch? A function of its config and its log, and of nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from manyfit.config.schema.run import Stop, Train
from manyfit.config.typed.cadence import Cadence
from manyfit.core.errors import Diverged, NotANumber, RunFailed
from manyfit.core.names import pluralize
from manyfit.store.events import Event

LOSSES = ("train_loss", "val_loss")


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a run is over; with an error if it failed."""

    reason: str
    error: RunFailed | None = None


def ending(train: Train, events: Sequence[Event], steps_per_epoch: int) -> Ending | None:
    """Judge a run by its whole log."""
    judge, stopped, newest = Judge(train), None, None
    for event in events:
        newest = judge.see(event, steps_per_epoch)
        if newest is not None and newest.error is None:
            stopped = stopped or newest
    return stopped or newest


class Judge:
    """Sees the rows of a log one after another, and says whether a run is over."""

    def __init__(self, train: Train) -> None:
        self._stop = train.stop
        own = train.optimizer is None and train.loss is None  # then the model brings its optimizer
        self._advice = "clipnorm in the model's optimizer" if own else "train.clip_norm"
        self._guard = train.guard
        patience = train.stop.patience if train.stop is not None else None
        self._patience = Cadence.parse(patience) if patience is not None else None
        self._lowest = dict.fromkeys(LOSSES, math.inf)
        self._best, self._best_step = math.inf, 0

    def see(self, event: Event, steps_per_epoch: int = 1) -> Ending | None:
        """Judge by one more row."""
        failed = self._failure(event)
        for name, lowest in self._lowest.items():
            value = event.values.get(name, math.inf)
            self._lowest[name] = min(lowest, value) if math.isfinite(value) else lowest
        if failed is not None:
            return Ending(str(failed), failed)
        return self._judge(self._stop, event, steps_per_epoch) if self._stop is not None else None

    def _failure(self, event: Event) -> RunFailed | None:
        """A loss that is not a number, or far above the lowest so far."""
        for name, lowest in self._lowest.items():
            value = event.values.get(name)
            if value is None:
                continue
            if self._guard.nan and not math.isfinite(value):
                return NotANumber(
                    f"{name} is {value} at step {event.step} (epoch {event.epoch:g}); a lower learning "
                    f"rate or {self._advice} may help, and train.guard.nan=false goes on regardless"
                )
            factor = self._guard.divergence
            if factor is not None and 0 < lowest < math.inf and value > factor * lowest:
                return Diverged(
                    f"{name} is {value:.4g} at step {event.step}, more than {factor:g} times "
                    f"the lowest so far, {lowest:.4g}"
                )
        return None

    def _judge(self, stop: Stop, event: Event, steps_per_epoch: int) -> Ending | None:
        """Good enough, or no better for as long as one is patient."""
        value = event.values.get(stop.metric)
        if value is None:
            return None
        sign = 1 if stop.mode == "min" else -1
        if stop.reach is not None and sign * value <= sign * stop.reach:
            return Ending(f"{stop.metric} has reached {value:.4g} at step {event.step}")
        if sign * value < self._best - stop.min_delta:
            self._best, self._best_step = sign * value, event.step
        waited = event.step - self._best_step
        if self._patience is None or waited < self._patience.steps(steps_per_epoch):
            return None
        by_epochs = self._patience.unit == "ep"
        length = (
            pluralize(round(waited / steps_per_epoch, 4), "epoch") if by_epochs else pluralize(waited, "step")
        )
        since = f"epoch {self._best_step / steps_per_epoch:.4g}" if by_epochs else f"step {self._best_step}"
        return Ending(
            f"{stop.metric} has not been better than {sign * self._best:.4g} for {length}, since {since}"
        )
