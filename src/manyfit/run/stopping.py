"""Is a run over before its last epoch? A function of its config and its log, and of nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from manyfit.config.cadence import Cadence
from manyfit.config.schema import Guard, Stop, Train
from manyfit.core.errors import Diverged, NotANumber, RunFailed
from manyfit.store.events import Event

LOSSES = ("train_loss", "val_loss")


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a run is over; with an error if it failed."""

    reason: str
    error: RunFailed | None = None


def ending(train: Train, events: Sequence[Event], steps_per_epoch: int) -> Ending | None:
    """Judge a run by its log, the newest row last."""
    if not events:
        return None
    failed = failure(train.guard, events)
    if failed is not None:
        return Ending(str(failed), failed)
    return stopped(train.stop, events, steps_per_epoch) if train.stop is not None else None


def failure(guard: Guard, events: Sequence[Event]) -> RunFailed | None:
    """A loss that is not a number, or far above the lowest so far."""
    newest = events[-1]
    for name in LOSSES:
        value = newest.values.get(name)
        if value is None:
            continue
        if guard.nan and not math.isfinite(value):
            return NotANumber(
                f"{name} is {value} at step {newest.step} (epoch {newest.epoch:g}); a lower learning rate or "
                "train.clip_norm may help, and train.guard.nan=false goes on regardless"
            )
        before = [e.values[name] for e in events[:-1] if math.isfinite(e.values.get(name, math.nan))]
        if guard.divergence is not None and before and value > guard.divergence * max(min(before), 0.0) > 0:
            return Diverged(
                f"{name} is {value:.4g} at step {newest.step}, more than {guard.divergence:g} times "
                f"the lowest so far, {min(before):.4g}"
            )
    return None


def stopped(stop: Stop, events: Sequence[Event], steps_per_epoch: int) -> Ending | None:
    """Good enough, or no better for as long as one is patient."""
    sign = 1 if stop.mode == "min" else -1
    best, best_step = math.inf, 0
    for event in events:
        value = event.values.get(stop.metric)
        if value is None:
            continue
        if stop.reach is not None and sign * value <= sign * stop.reach:
            return Ending(f"{stop.metric} has reached {value:.4g} at step {event.step}")
        if sign * value < best - stop.min_delta:
            best, best_step = sign * value, event.step
        if stop.patience is None:
            continue
        waited = event.step - best_step
        if waited >= Cadence.parse(stop.patience).steps(steps_per_epoch):
            return Ending(
                f"{stop.metric} has not been better than {sign * best:.4g} for {waited} steps, "
                f"since step {best_step}"
            )
    return None
