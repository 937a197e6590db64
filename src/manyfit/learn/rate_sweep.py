"""A sweep over learning rates on a learner, which is left exactly as it was."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from manyfit.core.errors import UsageError
from manyfit.core.names import listing, nearest
from manyfit.core.smoothing import smooth_values
from manyfit.core.state import State
from manyfit.data import Batch
from manyfit.data.randomness import own_randomness
from manyfit.learn.metrics_by_run import split_by_run

DIVERGED: Final = 4.0
"""A sweep ends when the smoothed loss is this many times as high as it was."""
SMOOTHING: Final = 0.8


@dataclass(frozen=True)
class RatePoint:
    """What was measured at one learning rate."""

    rate: float
    loss: float
    metrics: dict[str, float]
    """Validation metrics, where they were measured."""


def sweep_rates(
    learner: Any,
    batches: Iterator[Batch],
    rates: Sequence[float],
    optimizer: str = "",
    measure: Callable[[], dict[str, float]] | None = None,
    every: int = 10,
) -> list[RatePoint]:
    """Train one step at each rate; return the losses, until they diverge.

    The state of the learner, its options and the random states of the process are restored, whatever happens.
    """
    found: list[RatePoint] = []
    with keep_state(learner):
        set_rate = hold_schedules(learner, optimizer)
        learner.take()
        for number, rate in enumerate(rates):
            set_rate(rate)
            learner.train(batches, 1)
            (taken,) = split_by_run(learner.take(), 1)
            loss = taken.get("train_loss", math.nan)
            is_due = measure is not None and (number % every == every - 1 or number == len(rates) - 1)
            found.append(RatePoint(rate, loss, measure() if is_due and measure is not None else {}))
            if has_diverged([point.loss for point in found]):
                break
    return found


def has_diverged(losses: Sequence[float]) -> bool:
    """Return whether the loss is not finite, or far above its start."""
    if not math.isfinite(losses[-1]):
        return True
    smoothed = smooth_losses(losses)
    lowest = min(smoothed)
    return len(losses) > 10 and smoothed[-1] > lowest + (DIVERGED - 1) * max(abs(lowest), abs(smoothed[0]))


def smooth_losses(losses: Sequence[float]) -> list[float]:
    """Return the moving average by which a sweep is judged."""
    return smooth_values(losses, SMOOTHING)


@contextmanager
def keep_state(learner: Any) -> Iterator[None]:
    """Restore the state and the options of a learner, its schedules, and the random states on exit."""
    options = copy.deepcopy(learner.options())
    states = [_clone(state) for state in learner.state()]
    update = getattr(learner, "update", None)
    schedules = (list(update.stepping), list(update.waiting)) if update is not None else ([], [])
    try:
        with own_randomness():
            yield
    finally:
        if update is not None:
            update.stepping, update.waiting = schedules
            update.zero()
        with own_randomness():
            learner.load(states)
        learner.set_options(options)


def _clone(state: State) -> State:
    tensors = {name: tensor.clone() if hasattr(tensor, "clone") else copy.copy(tensor)
               for name, tensor in state.tensors.items()}  # fmt: skip
    return State(tensors, copy.deepcopy(state.values))


def hold_schedules(learner: Any, name: str) -> Callable[[float], None]:
    """Stop the schedules of a learner; return a function that sets its learning rate.

    Parameter groups keep the ratios of their rates. With several optimizers, `name` selects one.
    """
    update = getattr(learner, "update", None)
    if update is None:
        if not hasattr(learner, "set_rate"):
            raise UsageError("this model has no learning rate that can be set")
        return learner.set_rate  # type: ignore[no-any-return]
    optimizers = {**update.optimizers, **update.others}
    if not optimizers:
        raise UsageError("the model has no optimizer whose learning rate could be set")
    if name and name not in optimizers:
        if list(optimizers) == [""]:
            raise UsageError(f"there is only one optimizer, which has no name; leave {name!r} out")
        best = nearest(name, optimizers)
        hint = f"did you mean {best!r}?" if best else f"there are {listing(list(optimizers))}"
        raise UsageError(f"there is no optimizer {name!r}; {hint}")
    if not name and len(optimizers) > 1:
        raise UsageError(f"there are several optimizers; choose one of {listing(list(optimizers))}")
    optimizer = optimizers[name] if name else next(iter(optimizers.values()))
    update.stepping, update.waiting = [], []
    groups = optimizer.param_groups
    first = float(groups[0].get("initial_lr", groups[0]["lr"])) or 1.0
    ratios = [float(group.get("initial_lr", group["lr"])) / first for group in groups]

    def set_rate(rate: float) -> None:
        for group, ratio in zip(groups, ratios, strict=True):
            group["lr"] = rate * ratio

    return set_rate


def choose_rate(points: Sequence[RatePoint], how: str, higher: bool = False) -> float:
    """Return the suggested rate: where the loss falls fastest, a tenth of its minimum, or by a metric."""
    if how not in ("steepest", "minimum"):
        known = [(point.metrics[how], point.rate) for point in points if how in point.metrics]
        known = [(value, rate) for value, rate in known if math.isfinite(value)]
        if not known:
            names = sorted({name for point in points for name in point.metrics})
            there = f"; there are {listing(names)}" if names else ""
            raise UsageError(f"no metric {how!r} was measured{there}")
        return (max if higher else min)(known)[1]
    finite = [point for point in points if math.isfinite(point.loss)]
    if len(finite) < 5:
        raise UsageError("the loss diverged within 5 steps; choose lower rates")
    losses = smooth_losses([point.loss for point in finite])
    if how == "minimum":
        return finite[losses.index(min(losses))].rate / 10
    slopes = [
        (losses[i + 1] - losses[i - 1]) / math.log(finite[i + 1].rate / finite[i - 1].rate)
        for i in range(1, len(finite) - 1)
    ]
    skip = min(5, len(slopes) // 4)  # the first average is of few losses
    best = min(range(skip, len(slopes)), key=slopes.__getitem__)
    if slopes[best] >= 0:
        raise UsageError("the loss never falls between these rates; choose a wider range, or more steps")
    return finite[best + 1].rate


def trace_rates(learner: Any, steps: int) -> dict[str, list[float]]:
    """Return the rates, and the momentum, of every step, by advancing the schedules without training."""
    update = getattr(learner, "update", None)
    if update is None or not update.optimizers:
        raise UsageError("the config names no optimizer, so the rates of the model are not known")
    found: dict[str, list[float]] = {}
    for step in range(steps):
        for name, rate in update.rates().items():
            found.setdefault(name, []).append(rate)
        for optimizer in update.optimizers.values():
            optimizer._opt_called = True  # torch warns about schedules of optimizers that never step
        update.advance(step + 1)
    return found
