"""Early stopping and failing losses, decided from the config and the log of a run alone."""

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
    """The reason why a run ended, with an error if it failed."""

    reason: str
    error: RunFailed | None = None


def ending(train: Train, events: Sequence[Event], steps_per_epoch: int) -> Ending | None:
    """Return the ending of a run according to its whole log; None if it continues."""
    judge, stopped, newest = Judge(train), None, None
    for event in events:
        newest = judge.see(event, steps_per_epoch)
        if newest is not None and newest.error is None:
            stopped = stopped or newest
    return stopped or newest


class Judge:
    """A judge that sees the rows of a log in order and decides after each whether the run is over."""

    def __init__(self, train: Train) -> None:
        self._stop = train.stop
        own = train.optimizer is None and train.loss is None  # the model has its own optimizer
        self._advice = "clipping its gradients" if own else "train.clip_norm"
        self._guard = train.guard
        patience = train.stop.patience if train.stop is not None else None
        self._patience = Cadence.parse(patience) if patience is not None else None
        self._lowest = dict.fromkeys(LOSSES, math.inf)
        self._best, self._best_step = math.inf, 0

    def see(self, event: Event, steps_per_epoch: int = 1) -> Ending | None:
        """Process one more row, and return the ending if the run is over."""
        failed = self._failure(event)
        for name, lowest in self._lowest.items():
            value = event.values.get(name, math.inf)
            self._lowest[name] = min(lowest, value) if math.isfinite(value) else lowest
        if failed is not None:
            return Ending(str(failed), failed)
        return self._judge(self._stop, event, steps_per_epoch) if self._stop is not None else None

    def _failure(self, event: Event) -> RunFailed | None:
        """Return an error if a loss is not finite, or far above the lowest so far."""
        for name, lowest in self._lowest.items():
            value = event.values.get(name)
            if value is None:
                continue
            if self._guard.nan and not math.isfinite(value):
                return NotANumber(
                    f"{name} is {value} at step {event.step} (epoch {event.epoch:g}); a lower learning "
                    f"rate or {self._advice} may help, and train.guard.nan=false continues regardless"
                )
            factor = self._guard.divergence
            if factor is not None and 0 < lowest < math.inf and value > factor * lowest:
                return Diverged(
                    f"{name} is {value:.4g} at step {event.step}, more than {factor:g} times "
                    f"the lowest so far, {lowest:.4g}"
                )
        return None

    def _judge(self, stop: Stop, event: Event, steps_per_epoch: int) -> Ending | None:
        """Return the ending if the target is reached or the patience is exhausted."""
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
